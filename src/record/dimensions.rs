//! Names of axes by HDF5's dimension scales, as netCDF-4 files have them: xarray, netCDF and h5py then know of which
//! axis a coordinate is. Source: HDF5 Dimension Scale Specification; its library (hdf5_hl) is not there everywhere.

use std::collections::BTreeMap;

use hdf5::types::VarLenArray;
use hdf5::{File, H5Type, ObjectReference1};

use super::file::Hdf5Result;
use crate::fields::fixed_text;

/// An axis of a data set.
#[derive(H5Type, Clone, Copy)]
#[repr(C)]
struct AxisOf {
    dataset: ObjectReference1,
    dimension: i32,
}

/// The scales of a file, and the axes that have them.
pub(super) struct Dimensions<'a> {
    file: &'a File,
    scales: BTreeMap<String, Vec<AxisOf>>,
}

impl Dimensions<'_> {
    /// Of a file whose data sets of these names say where the places of the axes are that are called so.
    pub fn new(file: &File, coordinates: impl IntoIterator<Item = String>) -> Dimensions<'_> {
        let scales = coordinates.into_iter().map(|name| (name, Vec::new())).collect();
        Dimensions { file, scales }
    }

    /// Names the axes of a data set. An axis without coordinates has a scale without numbers.
    pub fn name(&mut self, of: &str, axes: &[String]) -> Hdf5Result {
        let data = self.file.dataset(of)?;
        let dataset = self.file.reference(of)?;
        let mut list = Vec::new();
        for (dimension, (axis, along)) in (0..).zip(axes.iter().zip(data.shape())) {
            let scale = self.scale(axis, along)?;
            list.push(VarLenArray::from_slice(&[self.file.reference::<ObjectReference1>(&scale)?]));
            self.scales.entry(scale).or_default().push(AxisOf { dataset, dimension });
        }
        let attribute = data.new_attr::<VarLenArray<ObjectReference1>>().shape([list.len()]);
        attribute.create("DIMENSION_LIST")?.write_raw(&list)
    }

    /// The scale of an axis: another one of the same name has another length.
    fn scale(&mut self, axis: &str, along: usize) -> hdf5::Result<String> {
        // In a name of HDF5 a slash stands between groups.
        let axis = axis.replace('/', "_");
        let names = (1..).map(|number| if number == 1 { axis.clone() } else { format!("{axis}_{number}") });
        let fits = |name: &String| match self.file.dataset(name) {
            Ok(known) => self.scales.contains_key(name) && known.shape() == [along],
            Err(_) => true,
        };
        let name = names.into_iter().find(fits).unwrap_or_default();
        if !self.scales.contains_key(&name) {
            let scale = self.file.new_dataset::<f32>().shape([along]).create(&*name)?;
            // By these words netCDF knows that it has no numbers.
            let none = format!("This is a netCDF dimension but not a netCDF variable.{along:10}");
            fixed_text(&scale, "NAME", &none)?;
            self.scales.insert(name.clone(), Vec::new());
        }
        Ok(name)
    }

    /// Says of each scale that it is one, and whose.
    pub fn finish(self) -> Hdf5Result {
        for (name, axes) in self.scales {
            let scale = self.file.dataset(&name)?;
            fixed_text(&scale, "CLASS", "DIMENSION_SCALE")?;
            if scale.attr("NAME").is_err() {
                fixed_text(&scale, "NAME", &name)?;
            }
            if !axes.is_empty() {
                scale.new_attr::<AxisOf>().shape([axes.len()]).create("REFERENCE_LIST")?.write_raw(&axes)?;
            }
        }
        Ok(())
    }
}
