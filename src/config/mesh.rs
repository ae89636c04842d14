//! How many ranks there are on each axis of parallelism.

use std::fmt;

use serde::Serialize;

/// Ranks along each axis: in all as many as the product. Ranks that differ in `tensor` are neighbours, then those that
/// differ in `data`, then those that differ in `pipeline`: the more two ranks have to say to each other the closer they
/// are. Deepak Narayanan et al.: "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC
/// 2021.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct MeshShape {
    /// Ranks with the same parameters and unlike images.
    pub data: usize,
    /// Ranks with unlike layers.
    pub pipeline: usize,
    /// Ranks with unlike parts of the same layers.
    pub tensor: usize,
}

impl MeshShape {
    /// Data parallelism alone.
    pub fn of_data(ranks: usize) -> MeshShape {
        MeshShape { data: ranks, pipeline: 1, tensor: 1 }
    }

    /// Whether the network is cut into stages.
    pub fn is_cut(self) -> bool {
        self.pipeline > 1
    }

    /// Whether some ranks have other parameters than others: other layers, or other parts of them.
    pub fn divides_parameters(self) -> bool {
        self.ranks() > self.data
    }

    /// How many ranks it has.
    pub fn ranks(self) -> usize {
        self.data * self.pipeline * self.tensor
    }

    /// The rank at these places of data, pipeline and tensor.
    pub fn rank(self, [data, pipeline, tensor]: [usize; 3]) -> usize {
        (pipeline * self.data + data) * self.tensor + tensor
    }

    /// A rank's places of data, pipeline and tensor.
    pub fn coordinates(self, rank: usize) -> [usize; 3] {
        let above = rank / self.tensor;
        [above % self.data, above / self.data, rank % self.tensor]
    }
}

impl fmt::Display for MeshShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "data {} × pipeline {} × tensor {}", self.data, self.pipeline, self.tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_place_and_tensor_is_innermost() {
        let shape = MeshShape { data: 3, pipeline: 2, tensor: 4 };
        assert_eq!((shape.ranks(), shape.to_string()), (24, "data 3 × pipeline 2 × tensor 4".to_string()));
        assert!((0..24).all(|rank| shape.rank(shape.coordinates(rank)) == rank));
        assert_eq!([shape.rank([0, 0, 1]), shape.rank([1, 0, 0]), shape.rank([0, 1, 0])], [1, 4, 12]);
    }
}
