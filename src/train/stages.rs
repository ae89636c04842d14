//! What stages of a network have, whole on the first rank, and back: files know nothing of stages.

use super::groups::Groups;
use crate::error::Result;
use crate::record::{Array, Contents};

/// The arrays of all stages, one stage behind the other. The first rank of each stage has `values`, those of its own
/// arrays; the first rank of the job then has all. Collective.
pub fn collect(groups: &Groups, own: Vec<Array>, values: &mut Option<Vec<f32>>) -> Result<Vec<Array>> {
    if !groups.mesh.is_cut() {
        return Ok(own);
    }
    let head = Contents { arrays: own.clone(), ..Contents::default() }.head();
    let heads = groups.job.gather_text(&head)?;
    let (rank, mut all) = (groups.job.rank(), own);
    for stage in 1..groups.mesh.pipeline {
        let from = groups.mesh.rank([0, stage, 0]);
        let arrays = Contents::from_head(&heads[from])?.arrays;
        match values {
            Some(values) if rank == 0 => {
                let start = values.len();
                values.resize(start + arrays.iter().map(Array::elements).sum::<usize>(), 0.0);
                groups.job.one_to_first(from, &mut values[start..])?;
                all.extend(arrays);
            }
            Some(values) if rank == from => groups.job.one_to_first(from, values)?,
            _ => {}
        }
    }
    Ok(all)
}

/// Of a file whose values the first rank has, what this rank's stage wants: with its values on the first rank of the
/// stage. Collective.
pub fn distribute(groups: &Groups, from: &Contents, wanted: impl Fn(&str) -> bool) -> Result<Contents> {
    let (mut arrays, mut values) = (Vec::new(), Vec::new());
    for array in &from.arrays {
        let mut numbers = vec![0f32; array.elements()];
        if let Some((_, there)) = from.array(&array.path) {
            numbers.copy_from_slice(there);
        }
        groups.job.broadcast(&mut numbers)?;
        if wanted(&array.path) {
            arrays.push(array.clone());
            if groups.data.is_first() {
                values.extend(numbers);
            }
        }
    }
    Ok(Contents { texts: from.texts.clone(), numbers: from.numbers.clone(), arrays, values })
}
