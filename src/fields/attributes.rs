//! What attributes of a file say of an array: what its axes are called, and, by netCDF's conventions, what its numbers
//! stand for.

use hdf5::plist::dataset_create::FillTime;
use hdf5::types::{FixedAscii, TypeDescriptor, VarLenArray, VarLenAscii, VarLenUnicode};
use hdf5::{Dataset, Location, ObjectReference1, ReferencedObject};

use super::element::NumberType;

/// What an array's numbers stand for.
pub(super) struct Meaning {
    /// The type that its numbers are read as.
    pub element: NumberType,
    /// Numbers that stand for none.
    pub missing: Vec<f64>,
    /// What a number is multiplied by, and what is then added.
    pub packing: Option<(f64, f64)>,
    /// Attributes that say something of its numbers that is not applied.
    pub not_applied: Vec<String>,
}

impl Meaning {
    /// `is_netcdf`: netCDF's library wrote the file, which knows numbers that were never written by their own value.
    ///
    /// # Errors
    /// What the numbers are instead.
    pub fn of(dataset: &Dataset, stored: NumberType, is_netcdf: bool) -> Result<Meaning, String> {
        let is_unsigned = text(dataset, "_Unsigned").is_some_and(|is| is.eq_ignore_ascii_case("true"));
        let element = if is_unsigned { stored.unsigned() } else { stored };
        let named = ["_FillValue", "missing_value"].map(|name| numbers(dataset, name));
        let has_fill = !named[0].is_empty();
        let mut missing: Vec<f64> = named.concat();
        let is_filled = || dataset.dcpl().is_ok_and(|list| list.fill_time() != FillTime::Never);
        if is_netcdf && !has_fill && is_filled() {
            missing.extend(stored.netcdf_fill());
        }
        if element != stored {
            missing.iter_mut().for_each(|number| *number = unwrapped(*number, element));
        }
        let [scale, offset] = [one(dataset, "scale_factor")?, one(dataset, "add_offset")?];
        let packing = scale.or(offset).map(|_| (scale.unwrap_or(1.0), offset.unwrap_or(0.0)));
        if packing.is_some_and(|(scale, offset)| !(scale.is_finite() && offset.is_finite())) {
            return Err("numbers that are packed by none (scale_factor, add_offset)".into());
        }
        let known = [
            ("_FillValue", has_fill),
            ("missing_value", !named[1].is_empty()),
            ("scale_factor", scale.is_some()),
            ("add_offset", offset.is_some()),
        ];
        let unread = known.into_iter().filter(|(_, is_known)| !is_known).map(|(name, _)| name);
        let ignored = unread.chain(["valid_range", "valid_min", "valid_max"]);
        let is_there = |name: &&str| dataset.attr(name).is_ok();
        let not_applied = ignored.filter(is_there).map(String::from).collect();
        Ok(Meaning { element, missing, packing, not_applied })
    }
}

/// What a negative number of a signed type is, read as this unsigned one of as many bits.
pub(super) fn unwrapped(number: f64, element: NumberType) -> f64 {
    let turn = f64::powi(2.0, 8 * element.bytes() as i32);
    if number < 0.0 { number + turn } else { number }
}

/// The number of an attribute that is one, or text that says one.
///
/// # Errors
/// It is several numbers.
fn one(dataset: &Dataset, name: &str) -> Result<Option<f64>, String> {
    match numbers(dataset, name)[..] {
        [] => Ok(text(dataset, name).and_then(|text| text.trim().parse().ok())),
        [number] => Ok(Some(number)),
        ref all => {
            Err(format!("numbers whose attribute {name} has {} numbers: one is for all of them", all.len()))
        }
    }
}

/// The numbers of an attribute; none where it has others.
fn numbers(dataset: &Dataset, name: &str) -> Vec<f64> {
    let Ok(attribute) = dataset.attr(name) else { return Vec::new() };
    match attribute.dtype().and_then(|datatype| datatype.to_descriptor()) {
        // Of f16 there is no descriptor; text has one.
        Ok(TypeDescriptor::Integer(_) | TypeDescriptor::Unsigned(_) | TypeDescriptor::Float(_)) | Err(_) => {
            attribute.read_raw::<f64>().unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// An attribute that is text; netCDF's strings are lists of one.
pub(super) fn text(of: &Location, name: &str) -> Option<String> {
    let attribute = of.attr(name).ok()?;
    let unicode = attribute.read_raw::<VarLenUnicode>().ok().and_then(|all| Some(all.first()?.to_string()));
    let ascii = || attribute.read_raw::<VarLenAscii>().ok().and_then(|all| Some(all.first()?.to_string()));
    let fixed = || attribute.read_raw::<FixedAscii<64>>().ok().and_then(|all| Some(all.first()?.to_string()));
    unicode.or_else(ascii).or_else(fixed).filter(|text| !text.is_empty())
}

/// What the scales of a dataset's axes are called (netCDF's dimensions).
pub(super) fn axes(dataset: &Dataset, count: usize) -> Vec<String> {
    let named = || -> Option<Vec<String>> {
        let lists = dataset.attr("DIMENSION_LIST").ok()?.read_raw::<VarLenArray<ObjectReference1>>().ok()?;
        let of = |list: &VarLenArray<ObjectReference1>| match dataset.dereference(list.first()?) {
            Ok(ReferencedObject::Dataset(scale)) => Some(scale.name().rsplit('/').next()?.to_string()),
            _ => None,
        };
        Some(lists.iter().map(|list| of(list).unwrap_or_default()).collect())
    };
    named().filter(|names| names.len() == count).unwrap_or_else(|| vec![String::new(); count])
}
