//! What images are, by a network: as a table, as text with commas (RFC 4180), or as HDF5.

use std::fs;
use std::path::Path;

use ndarray::Array2;

use super::check_new;
use super::file::texts;
use crate::error::{OrError, Result};
use crate::files::write_new;
use crate::model::CLASS_NAMES;

/// The most probable classes of images.
#[derive(Debug, Default, PartialEq)]
pub struct Predictions {
    /// What the images are called, in the order of the data.
    pub images: Vec<String>,
    /// The classes that the data say they are of, where that is known.
    pub labels: Option<Vec<String>>,
    /// The name of each class.
    pub classes: Vec<String>,
    /// Each image's most probable classes with their probabilities; none where it could not be read.
    pub rows: Vec<Vec<(u32, f32)>>,
}

impl Predictions {
    /// Writes all of them, as HDF5 where the file's name ends in .h5, else as text.
    ///
    /// # Errors
    /// `Output` when the file is there already or cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        check_new(path)?;
        let wrong = "cannot write the predictions";
        write_new(path, "the predictions", |new| match path.extension().is_some_and(|end| end == "h5") {
            true => self.write_hdf5(new).or_output(path, wrong),
            false => fs::write(new, self.csv()).or_output(path, wrong),
        })
    }

    /// How many classes an image has at most.
    fn top(&self) -> usize {
        self.rows.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn name(&self, class: u32) -> &str {
        self.classes.get(class as usize).map_or("", String::as_str)
    }

    /// A line an image: its name, its class where that is known, and classes with probabilities.
    fn csv(&self) -> String {
        let head = ["image"].into_iter().chain(self.labels.as_ref().map(|_| "label")).map(String::from);
        let numbered =
            (1..=self.top()).flat_map(|place| [format!("class_{place}"), format!("probability_{place}")]);
        let mut text = head.chain(numbered).collect::<Vec<_>>().join(",") + "\n";
        for (index, row) in self.rows.iter().enumerate() {
            let mut cells = vec![quoted(self.images.get(index).map_or("", String::as_str))];
            cells.extend(self.labels.as_ref().map(|labels| quoted(&labels[index])));
            for place in 0..self.top() {
                let cell =
                    row.get(place).map(|&(class, share)| [quoted(self.name(class)), share.to_string()]);
                cells.extend(cell.unwrap_or_default());
            }
            text += &(cells.join(",") + "\n");
        }
        text
    }

    /// `image`, `label`, `class` (numbers; −1 where there is none), `probability`, and `class_names`.
    fn write_hdf5(&self, path: &Path) -> hdf5::Result<()> {
        let file = hdf5::File::create(path)?;
        file.new_dataset_builder().with_data(&texts(&self.images)?).create("image")?;
        file.new_dataset_builder().with_data(&texts(&self.classes)?).create(CLASS_NAMES)?;
        if let Some(labels) = &self.labels {
            file.new_dataset_builder().with_data(&texts(labels)?).create("label")?;
        }
        let shape = (self.rows.len(), self.top());
        let cell = |(row, place): (usize, usize)| self.rows[row].get(place);
        let classes = Array2::from_shape_fn(shape, |at| cell(at).map_or(-1, |&(class, _)| class as i32));
        let shares = Array2::from_shape_fn(shape, |at| cell(at).map_or(f32::NAN, |&(_, share)| share));
        file.new_dataset_builder().with_data(&classes).create("class")?;
        file.new_dataset_builder().with_data(&shares).create("probability")?;
        Ok(())
    }

    /// The predictions as a table for people.
    pub fn table(&self) -> String {
        let widest = |texts: &mut dyn Iterator<Item = &String>| texts.map(|text| text.chars().count()).max();
        let image = widest(&mut self.images.iter()).unwrap_or(0);
        let class = widest(&mut self.classes.iter()).unwrap_or(0);
        let mut lines = Vec::with_capacity(self.rows.len());
        for (name, row) in self.images.iter().zip(&self.rows) {
            let cells =
                row.iter().map(|&(of, share)| format!("  {:>class$} {:>6.2}%", self.name(of), 100.0 * share));
            let said = if row.is_empty() { "  cannot be read".into() } else { cells.collect::<String>() };
            lines.push(format!("{name:<image$}{said}"));
        }
        lines.join("\n")
    }
}

/// A cell in quotation marks, where it has what would end it.
fn quoted(text: &str) -> String {
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_has_a_line_also_one_that_cannot_be_read() {
        let predictions = Predictions {
            images: vec!["a, \"b\".png".into(), "c.png".into()],
            labels: Some(vec!["dog".into(), "cat".into()]),
            classes: vec!["cat".into(), "dog".into()],
            rows: vec![vec![(1, 0.75), (0, 0.25)], Vec::new()],
        };
        let csv = "image,label,class_1,probability_1,class_2,probability_2\n\
                   \"a, \"\"b\"\".png\",dog,dog,0.75,cat,0.25\nc.png,cat,,,,\n";
        assert_eq!(predictions.csv(), csv);
        let table = "a, \"b\".png  dog  75.00%  cat  25.00%\nc.png       cannot be read";
        assert_eq!(predictions.table().lines().map(str::trim_end).collect::<Vec<_>>().join("\n"), table);
    }
}
