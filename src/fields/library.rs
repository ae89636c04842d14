//! What the HDF5 library knows and the crate `hdf5` has no call for: where one chunk lies and how many were written,
//! how a type lays out its bits, of which arrays a virtual one is put together, which parts of it these are, and texts
//! as C has them.

use std::ffi::{CStr, CString, c_char};

use hdf5::dataset::DatasetCreate;
use hdf5::sync::sync;
use hdf5::types::TypeDescriptor;
use hdf5::{Dataset, Datatype};
use hdf5_sys::h5a::{H5Aclose, H5Acreate2, H5Awrite};
use hdf5_sys::h5d::{H5Dget_chunk_info_by_coord, H5Dget_num_chunks};
use hdf5_sys::h5i::hid_t;
use hdf5_sys::h5p::{
    H5P_DEFAULT, H5Pget_virtual_count, H5Pget_virtual_dsetname, H5Pget_virtual_filename,
    H5Pget_virtual_vspace,
};
use hdf5_sys::h5s::{
    H5S_class_t, H5S_sel_type, H5Sclose, H5Screate, H5Sget_regular_hyperslab, H5Sget_select_bounds,
    H5Sget_select_type, H5Sget_simple_extent_ndims, H5Sis_regular_hyperslab,
};
use hdf5_sys::h5t::{
    H5T_C_S1, H5T_class_t, H5T_norm_t, H5T_order_t, H5T_sign_t, H5Tclose, H5Tcopy, H5Tget_class,
    H5Tget_ebias, H5Tget_fields, H5Tget_norm, H5Tget_offset, H5Tget_order, H5Tget_precision, H5Tget_sign,
    H5Tget_size, H5Tset_size,
};

use super::array::StoredChunk;
use super::element::{NumberKind, NumberType};
use super::gaps::Slab;

/// Where the chunk lies whose first number has these places; a chunk without bytes was never written.
///
/// # Errors
/// The library does not say it.
pub(super) fn chunk(dataset: &Dataset, first: &[u64]) -> Result<StoredChunk, String> {
    let (mut skipped, mut at, mut bytes) = (0, 0, 0);
    // SAFETY: the dataset lives and is chunked, `first` has a place for each of its axes, and the library writes to the
    // three numbers alone. The lock is held.
    let status = sync(|| unsafe {
        H5Dget_chunk_info_by_coord(
            dataset.id(),
            first.as_ptr(),
            &raw mut skipped,
            &raw mut at,
            &raw mut bytes,
        )
    });
    if status < 0 {
        return Err("the HDF5 library does not find its chunks".into());
    }
    Ok(if at == u64::MAX || bytes == 0 { StoredChunk::default() } else { StoredChunk { at, bytes, skipped } })
}

/// How many chunks the file has of an array.
///
/// # Errors
/// The library does not say it.
pub(super) fn written_chunks(dataset: &Dataset) -> Result<usize, String> {
    let unknown = || "the HDF5 library does not count its chunks".to_string();
    let space = dataset.space().map_err(|_| unknown())?;
    let mut count = 0;
    // SAFETY: dataset and space live, the dataset is chunked, and the library writes to the one number. The lock is
    // held.
    let status = sync(|| unsafe { H5Dget_num_chunks(dataset.id(), space.id(), &raw mut count) });
    if status < 0 { Err(unknown()) } else { Ok(count as usize) }
}

/// The parts of a virtual array of so many axes that others have numbers for; of one that is no grid of blocks what
/// lies around it.
///
/// # Errors
/// The library does not say it.
pub(super) fn parts(list: &DatasetCreate, axes: usize) -> Result<Vec<Vec<Slab>>, String> {
    let unknown = || "parts that the HDF5 library does not say".to_string();
    let id = list.id();
    let mut count = 0;
    // SAFETY: the list lives, and the library writes to the one number. The lock is held.
    if sync(|| unsafe { H5Pget_virtual_count(id, &raw mut count) }) < 0 {
        return Err(unknown());
    }
    let part = |index: usize| {
        let [mut first, mut apart, mut count, mut block] = [(); 4].map(|()| vec![0u64; axes]);
        // SAFETY: the list lives, `index` is below the count, the space that the library makes is closed again, it has
        // as many axes as the array, and the library writes a number for each of them. The lock is held.
        let known = sync(|| unsafe {
            let space = H5Pget_virtual_vspace(id, index);
            if space < 0 || H5Sget_simple_extent_ndims(space) != axes as i32 {
                return false;
            }
            let is_regular = H5Sget_select_type(space) == H5S_sel_type::H5S_SEL_HYPERSLABS
                && H5Sis_regular_hyperslab(space) > 0;
            let status = if is_regular {
                let [first, apart] = [first.as_mut_ptr(), apart.as_mut_ptr()];
                H5Sget_regular_hyperslab(space, first, apart, count.as_mut_ptr(), block.as_mut_ptr())
            } else {
                count.fill(1);
                // The last place of each axis.
                H5Sget_select_bounds(space, first.as_mut_ptr(), block.as_mut_ptr())
            };
            if !is_regular {
                block.iter_mut().zip(&first).for_each(|(last, first)| *last = *last + 1 - *first);
            }
            H5Sclose(space);
            status >= 0
        });
        let of = |axis: usize| Slab {
            first: first[axis],
            apart: apart[axis],
            count: count[axis],
            block: block[axis],
        };
        known.then(|| (0..axes).map(of).collect()).ok_or_else(unknown)
    };
    (0..count).map(part).collect()
}

/// The files and arrays that a virtual array is put together of, as its own file names them.
///
/// # Errors
/// The library does not say it.
pub(super) fn sources(list: &DatasetCreate) -> Result<Vec<(String, String)>, String> {
    type Call = unsafe extern "C" fn(hid_t, usize, *mut c_char, usize) -> isize;
    let unknown = || "numbers of files that the HDF5 library does not name".to_string();
    let id = list.id();
    let mut count = 0;
    // SAFETY: the list lives, and the library writes to the one number. The lock is held.
    if sync(|| unsafe { H5Pget_virtual_count(id, &raw mut count) }) < 0 {
        return Err(unknown());
    }
    let name = |call: Call, index: usize| -> Result<String, String> {
        // SAFETY: the list lives, `index` is below the count, and without memory only the length is asked for. The lock
        // is held.
        let len = sync(|| unsafe { call(id, index, std::ptr::null_mut(), 0) });
        let mut text = vec![0u8; usize::try_from(len).map_err(|_| unknown())? + 1];
        // SAFETY: as before, and the library writes no more than the text has room for, with a zero at the end. The
        // lock is held.
        let len = sync(|| unsafe { call(id, index, text.as_mut_ptr().cast(), text.len()) });
        let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| len >= 0).ok_or_else(unknown)?;
        Ok(text.to_string_lossy().into_owned())
    };
    let source = |at| Ok((name(H5Pget_virtual_filename, at)?, name(H5Pget_virtual_dsetname, at)?));
    (0..count).map(source).collect()
}

/// The numbers of a type, if they are ones that processors know.
///
/// # Errors
/// What they are instead.
pub(super) fn element(datatype: &Datatype) -> Result<NumberType, String> {
    let id = datatype.id();
    // SAFETY: the type lives, and the calls only read it. The lock is held.
    let (class, bytes, order, signed, bits) = sync(|| unsafe {
        let bits = (H5Tget_precision(id), H5Tget_offset(id));
        (H5Tget_class(id), H5Tget_size(id), H5Tget_order(id), H5Tget_sign(id) == H5T_sign_t::H5T_SGN_2, bits)
    });
    let big_endian = match order {
        H5T_order_t::H5T_ORDER_BE => true,
        H5T_order_t::H5T_ORDER_LE | H5T_order_t::H5T_ORDER_NONE => false,
        _ => return Err("numbers in an order of bytes of their own".into()),
    };
    let whole = bits == (8 * bytes, 0);
    let kind = match class {
        H5T_class_t::H5T_INTEGER => match (bytes, signed) {
            _ if !whole => return Err(format!("integers of {} bits", bits.0)),
            (1, true) => NumberKind::I8,
            (2, true) => NumberKind::I16,
            (4, true) => NumberKind::I32,
            (8, true) => NumberKind::I64,
            (1, false) => NumberKind::U8,
            (2, false) => NumberKind::U16,
            (4, false) => NumberKind::U32,
            (8, false) => NumberKind::U64,
            _ => return Err(format!("integers of {bytes} bytes")),
        },
        H5T_class_t::H5T_FLOAT => match float(id) {
            _ if !whole => return Err(format!("real numbers of {} bits", bits.0)),
            Some([15, 10, 5, 0, 10, 15]) if bytes == 2 => NumberKind::F16,
            Some([31, 23, 8, 0, 23, 127]) if bytes == 4 => NumberKind::F32,
            Some([63, 52, 11, 0, 52, 1023]) if bytes == 8 => NumberKind::F64,
            _ => return Err(format!("real numbers of {bytes} bytes in a format of their own")),
        },
        H5T_class_t::H5T_STRING => return Err("text".into()),
        H5T_class_t::H5T_COMPOUND => return Err("compounds of several fields".into()),
        // Booleans as h5py writes them: FALSE is 0 and TRUE is 1.
        H5T_class_t::H5T_ENUM => match (datatype.to_descriptor(), signed) {
            (Ok(TypeDescriptor::Boolean), true) => NumberKind::I8,
            (Ok(TypeDescriptor::Boolean), false) => NumberKind::U8,
            _ => {
                return Err(
                    "names of an enumeration: write their numbers as integers (NumPy's astype)".into()
                );
            }
        },
        H5T_class_t::H5T_VLEN => return Err("lists of various lengths".into()),
        H5T_class_t::H5T_ARRAY => return Err("arrays in an array".into()),
        H5T_class_t::H5T_REFERENCE => return Err("references".into()),
        _ => return Err("no numbers".into()),
    };
    Ok(NumberType { kind, big_endian })
}

/// Gives a data set an attribute that is a text of a fixed length with a zero byte behind it, by which dimension scales
/// are known. `hdf5` writes texts of a fixed length without that byte.
///
/// # Errors
/// The library cannot write it.
pub fn fixed_text(dataset: &Dataset, name: &str, value: &str) -> hdf5::Result<()> {
    let [name, value] = [name, value].map(|text| CString::new(text.replace('\0', " ")).unwrap_or_default());
    // SAFETY: the dataset lives, both texts end with a zero byte, and the type has the bytes of the value and its zero.
    // What is made is closed once, and what could not be made has a negative number, with which the library does
    // nothing. The lock is held.
    let is_written = sync(|| unsafe {
        let text = H5Tcopy(*H5T_C_S1);
        let space = H5Screate(H5S_class_t::H5S_SCALAR);
        let is_sized = H5Tset_size(text, value.as_bytes_with_nul().len()) >= 0;
        let id = H5Acreate2(dataset.id(), name.as_ptr(), text, space, H5P_DEFAULT, H5P_DEFAULT);
        let is_written = is_sized && id >= 0 && H5Awrite(id, text, value.as_ptr().cast()) >= 0;
        let closed = [H5Aclose(id), H5Sclose(space), H5Tclose(text)];
        is_written && closed.iter().all(|status| *status >= 0)
    });
    if is_written {
        Ok(())
    } else {
        Err(format!("the attribute {} cannot be written", name.to_string_lossy()).into())
    }
}

/// Where sign, exponent (and its bits) and mantissa (and its bits) of a real number lie, and the exponent's bias.
fn float(id: hid_t) -> Option<[usize; 6]> {
    let [mut sign, mut exponent, mut exponent_bits, mut mantissa, mut mantissa_bits] = [0; 5];
    // SAFETY: the type lives and is one of real numbers; the library writes to the five numbers alone. The lock is
    // held.
    let (status, bias, norm) = sync(|| unsafe {
        let status = H5Tget_fields(
            id,
            &raw mut sign,
            &raw mut exponent,
            &raw mut exponent_bits,
            &raw mut mantissa,
            &raw mut mantissa_bits,
        );
        (status, H5Tget_ebias(id), H5Tget_norm(id))
    });
    let sound = status >= 0 && norm == H5T_norm_t::H5T_NORM_IMPLIED;
    sound.then_some([sign, exponent, exponent_bits, mantissa, mantissa_bits, bias])
}
