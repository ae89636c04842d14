//! PowerSGD: a tensor is seen as a matrix, and two thin matrices whose product is close to it are summed in its place.
//!
//! Thijs Vogels, Sai Praneeth Karimireddy and Martin Jaggi: "PowerSGD: practical low-rank gradient compression for
//! distributed optimization", NeurIPS 2019, algorithms 1 and 2: one step of subspace iteration that starts from the
//! right factor of the last step. With M the gradient and residual of a rank, n×m, and Q of R rows of m numbers, the
//! same on all ranks:
//!
//! 1. left = M·Qᵀ, summed over ranks, its columns made orthonormal (the same on every rank);
//! 2. right = leftᵀ·M, of which the rank keeps M − left·right as its residual; summed over ranks, it is the next Q;
//! 3. the sum of gradients is taken to be left·right.
//!
//! A tensor's rows are its first dimension (a layer's outputs), its columns all others. Those with one dimension, and
//! those for which the factors would be no smaller, are summed as they are. Here are the matrix operations, on runs of
//! rows; all matrices have their rows one after the other.

use crate::random::{Purpose, key, normals, philox};

/// left = matrix·rightᵀ for the rows given: `left` has `rank` numbers a row.
pub fn project(matrix: &[f32], columns: usize, right: &[f32], left: &mut [f32]) {
    let rank = right.len() / columns.max(1);
    for (row, left) in matrix.chunks_exact(columns).zip(left.chunks_exact_mut(rank)) {
        for (left, factor) in left.iter_mut().zip(right.chunks_exact(columns)) {
            *left = dot(row, factor);
        }
    }
}

/// right += leftᵀ·matrix for the rows given.
pub fn back_project(matrix: &[f32], columns: usize, left: &[f32], right: &mut [f32]) {
    let rank = right.len() / columns.max(1);
    for (row, left) in matrix.chunks_exact(columns).zip(left.chunks_exact(rank)) {
        for (&left, factor) in left.iter().zip(right.chunks_exact_mut(columns)) {
            factor.iter_mut().zip(row).for_each(|(factor, value)| *factor += left * value);
        }
    }
}

/// matrix += sign·left·right for the rows given.
pub fn add_product(matrix: &mut [f32], columns: usize, sign: f32, left: &[f32], right: &[f32]) {
    let rank = right.len() / columns.max(1);
    for (row, left) in matrix.chunks_exact_mut(columns).zip(left.chunks_exact(rank)) {
        for (&left, factor) in left.iter().zip(right.chunks_exact(columns)) {
            row.iter_mut().zip(factor).for_each(|(value, factor)| *value += sign * left * factor);
        }
    }
}

/// Makes the columns of `left` orthonormal (modified Gram-Schmidt, twice: once is not enough where columns are nearly
/// parallel). A column of which nothing is left but rounding becomes zero: the matrix has no such rank.
pub fn orthogonalise(left: &mut [f32], rank: usize) {
    const NOTHING: f64 = 1e-6;
    for column in 0..rank {
        let before = norm(left, rank, column);
        for _ in 0..2 {
            for other in 0..column {
                let along: f64 =
                    left.chunks_exact(rank).map(|row| f64::from(row[other]) * f64::from(row[column])).sum();
                left.chunks_exact_mut(rank).for_each(|row| row[column] -= along as f32 * row[other]);
            }
        }
        let after = norm(left, rank, column);
        // NaN is not at most anything, and goes on.
        let scale = if after <= NOTHING * before { 0.0 } else { 1.0 / after };
        left.chunks_exact_mut(rank).for_each(|row| row[column] = (f64::from(row[column]) * scale) as f32);
    }
}

fn norm(left: &[f32], rank: usize, column: usize) -> f64 {
    left.chunks_exact(rank).map(|row| f64::from(row[column]).powi(2)).sum::<f64>().sqrt()
}

/// Puts random numbers in the place of every factor that is zero, from which nothing could ever come again: at the
/// start, and where a matrix had no such rank. A function of the tensor's place alone, and so the same on all ranks.
pub fn renew(right: &mut [f32], columns: usize, tensor: usize) {
    let key = key(tensor as u64, Purpose::Compress, 0);
    for (index, factor) in right.chunks_exact_mut(columns).enumerate() {
        if factor.iter().any(|&value| value != 0.0) {
            continue;
        }
        for (block, four) in factor.chunks_mut(4).enumerate() {
            let numbers = normals(philox(key, [block as u32, index as u32, 0, 0]));
            four.copy_from_slice(&numbers[..four.len()]);
        }
    }
}

/// In sixteen sums, which are added up last.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (mut sums, mut rest) = ([0f32; LANES], 0f32);
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    a_rest.iter().zip(b_rest).for_each(|(a, b)| rest += a * b);
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * columns).map(|i| ((i * 7919 + i * i * 31) % 1009) as f32 / 504.5 - 1.0).collect()
    }

    /// One step on one rank: the product, and what stays.
    fn step(matrix: &[f32], columns: usize, right: &mut [f32]) -> (Vec<f32>, Vec<f32>) {
        let (rank, rows) = (right.len() / columns, matrix.len() / columns);
        let mut left = vec![0.0; rows * rank];
        renew(right, columns, 3);
        project(matrix, columns, right, &mut left);
        orthogonalise(&mut left, rank);
        right.fill(0.0);
        back_project(matrix, columns, &left, right);
        let (mut product, mut residual) = (vec![0.0; matrix.len()], matrix.to_vec());
        add_product(&mut product, columns, 1.0, &left, right);
        add_product(&mut residual, columns, -1.0, &left, right);
        (product, residual)
    }

    fn norm_of(values: &[f32]) -> f64 {
        values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
    }

    /// Orthonormal columns make it a projection: nothing is added to the norm, and product and residual add up but for
    /// rounding (rank + 1 products and sums, of numbers up to the norm of a row).
    #[test]
    fn product_and_residual_add_up_and_neither_is_larger() {
        for (rows, columns, rank) in [(1, 5, 1), (7, 3, 2), (33, 50, 4), (20, 20, 20), (5, 40, 8)] {
            let matrix = matrix(rows, columns);
            let (product, residual) = step(&matrix, columns, &mut vec![0.0; rank * columns]);
            let size = norm_of(&matrix);
            for ((p, r), v) in product.iter().zip(&residual).zip(&matrix) {
                assert!((p + r - v).abs() <= (4 * rank + 4) as f32 * 2f32.powi(-24) * size as f32);
            }
            for part in [&product, &residual] {
                assert!(norm_of(part) <= 1.0001 * size, "{rows}x{columns} rank {rank}");
            }
        }
    }

    #[test]
    fn a_matrix_of_low_rank_is_found_and_the_warm_start_closes_in_on_any() {
        let thin = |n: usize, by: usize| (0..n).map(|i| ((i * by) % 13) as f32 - 6.0).collect::<Vec<f32>>();
        let mut low = vec![0.0; 30 * 40];
        for (left, right) in [(thin(30, 5), thin(40, 7)), (thin(30, 11), thin(40, 3))] {
            add_product(&mut low, 40, 1.0, &left, &right);
        }
        // Also with more factors than there are directions.
        for rank in [2, 4] {
            let (_, residual) = step(&low, 40, &mut vec![0.0; rank * 40]);
            assert!(norm_of(&residual) < 1e-4 * norm_of(&low), "rank {rank}");
        }
        let any = matrix(30, 40);
        let mut right = vec![0.0; 2 * 40];
        let first = norm_of(&step(&any, 40, &mut right).1);
        (0..50).for_each(|_| drop(step(&any, 40, &mut right)));
        let last = norm_of(&step(&any, 40, &mut right).1);
        assert!(last < 0.99 * first, "{first} and then {last}");
    }

    #[test]
    fn zeros_stay_zeros_and_broken_numbers_broken() {
        let mut right = vec![0.0; 2 * 5];
        let (product, residual) = step(&[0.0; 20], 5, &mut right);
        assert!(product.iter().chain(&residual).chain(&right).all(|&v| v == 0.0));
        let mut broken = matrix(4, 5);
        broken[7] = f32::NAN;
        assert!(step(&broken, 5, &mut right).0.iter().any(|v| v.is_nan()));
    }
}
