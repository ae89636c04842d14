//! Arrays whose numbers have 8 or 16 bits in their files: they are read as they are, and what becomes of each is said
//! by a table.

use std::sync::Arc;

use super::{DType, Graph, Node, Op, Role, Shape, Spec, Tensor, TensorId};

/// What becomes of the numbers of a sample, of which there are as many as codes.
#[derive(Debug, Clone)]
pub struct CodeTables {
    /// `U8` or `U16`: how many codes there are.
    pub dtype: DType,
    /// A sample's numbers are as many runs of one length: which table each has.
    pub which: Arc<[f32]>,
    /// The tables one behind the other, each with a number for every code.
    pub tables: Arc<[f32]>,
}

impl CodeTables {
    /// Codes of a type.
    pub fn codes(dtype: DType) -> usize {
        1 << (8 * dtype.bytes())
    }

    /// Whether others say the same, of NaN too.
    pub fn is_same(&self, other: &CodeTables) -> bool {
        let alike = |a: &[f32], b: &[f32]| a.iter().map(|a| a.to_bits()).eq(b.iter().map(|b| b.to_bits()));
        self.dtype == other.dtype && alike(&self.which, &other.which) && alike(&self.tables, &other.tables)
    }
}

impl Graph {
    /// The network reading codes, of its input, its target or both, where there are tables for them. For a forward
    /// graph that is as it is to be otherwise.
    pub fn from_codes(mut self, tables: [Option<&CodeTables>; 2]) -> Graph {
        if tables.iter().all(Option::is_none) {
            return self;
        }
        let spec = Spec { shape: Shape(vec![self.batch()]), dtype: DType::I32 };
        let samples = self.add_tensor(Tensor::new("samples", spec, Role::Input));
        self.samples = Some(samples);
        if let Some(tables) = tables[0] {
            self.images = self.look_up(self.images, samples, tables, false);
        }
        if let Some(tables) = tables[1] {
            self.labels = self.look_up(self.labels, samples, tables, true);
        }
        self
    }

    /// Makes of an input the result of what reads its codes in its place.
    fn look_up(&mut self, input: TensorId, samples: TensorId, of: &CodeTables, is_target: bool) -> TensorId {
        let Tensor { name, spec, .. } = self.tensor(input).clone();
        let mut constant = |what: &str, shape: Vec<usize>, values: &Arc<[f32]>| {
            let spec = Spec { shape: Shape(shape), dtype: DType::F32 };
            let tensor = Tensor::new(format!("{name}.{what}"), spec, Role::Constant);
            self.add_tensor(Tensor { values: Some(values.clone()), ..tensor })
        };
        let codes = CodeTables::codes(of.dtype);
        let which = constant("which", vec![of.which.len()], &of.which);
        let tables = constant("tables", vec![of.tables.len() / codes, codes], &of.tables);
        let spec = Spec { dtype: of.dtype, ..spec };
        let codes = self.add_tensor(Tensor::new(format!("{name}.codes"), spec, Role::Input));
        self.tensors[input.0].role = Role::Activation;
        // Where it is wanted: of stages the last one reads targets.
        let at = self.nodes.iter().position(|node| node.inputs.contains(&input)).unwrap_or(0);
        let inputs = vec![codes, samples, which, tables];
        self.nodes.insert(at, Node::new(name, Op::Lookup { is_target }, inputs, vec![input]));
        self.forward_nodes += 1;
        codes
    }
}
