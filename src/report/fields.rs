//! What a network gave of samples that are arrays, beside what it was to give: maps with their errors, IoU by class,
//! and predicted over true numbers.

use std::fmt::Write as _;

use super::axis::{ChartAxis, Scale};
use super::chart::{self, ChartLine, Mark};
use super::figures::Figure;
use super::page::{Section, escape};
use crate::error::{Error, Result};
use crate::fields::six_digits;
use crate::record::PredictedFields;

/// Places of a map on a side; of more every so many is drawn.
const SIDE: usize = 512;
/// Points of a scatter, and of a curve.
const POINTS: usize = 2000;
/// Colours from the lowest number to the highest: of viridis, as all who see can tell them apart.
const LOW_TO_HIGH: [[f64; 3]; 5] =
    [[68.0, 1.0, 84.0], [59.0, 82.0, 139.0], [33.0, 145.0, 140.0], [94.0, 201.0, 98.0], [253.0, 231.0, 37.0]];
/// From too low over right to too high.
const ERRORS: [[f64; 3]; 3] = [[33.0, 102.0, 172.0], [247.0, 247.0, 247.0], [178.0, 24.0, 43.0]];
const MISSING: [u8; 3] = [255, 255, 255];
const WRONG: [u8; 3] = [178, 24, 43];
const RIGHT: [u8; 3] = [225, 225, 225];

/// What the sums over all samples come to.
#[derive(Default)]
struct Total {
    count: f64,
    absolute: f64,
    square: f64,
    /// Points that are found to be of a class and are, that are found to be, and that are: by class.
    classes: Vec<[u64; 3]>,
}

impl Total {
    fn add(&mut self, output: &[f32], target: &[f32], of_classes: bool) {
        let is_class = |number: &f32| (0.0..65536.0).contains(number);
        let counts = |y: &f32, t: &f32| !t.is_nan() && (!of_classes || (is_class(y) && is_class(t)));
        for (&y, &t) in output.iter().zip(target).filter(|(y, t)| counts(y, t)) {
            let error = f64::from(y) - f64::from(t);
            self.count += 1.0;
            self.absolute += error.abs();
            self.square += error * error;
            if of_classes {
                let last = y.max(t) as usize;
                if last >= self.classes.len() {
                    self.classes.resize(last + 1, [0; 3]);
                }
                self.classes[y as usize][1] += 1;
                self.classes[t as usize][2] += 1;
                self.classes[y as usize][0] += u64::from(y == t);
            }
        }
    }

    /// In a line.
    fn said(&self, unit: &str) -> String {
        let points = format!("{} points that have a target", self.count);
        if !self.classes.is_empty() {
            let right: u64 = self.classes.iter().map(|[hits, ..]| hits).sum();
            return format!("{points}; {:.2} % are right", 100.0 * right as f64 / self.count);
        }
        let [mae, rmse] = [self.absolute / self.count, (self.square / self.count).sqrt()].map(six_digits);
        format!("{points}; mean absolute error {mae}{unit}, root of the mean square {rmse}{unit}")
    }

    /// Intersection over union of each class, of all points together.
    fn table(&self) -> String {
        let mut html = String::from(
            "<table><tr><th>class</th><th class=\"number\">points</th><th class=\"number\">found</th>\
             <th class=\"number\">both</th><th class=\"number\">IoU</th></tr>\n",
        );
        let mut all = Vec::new();
        for (class, [hits, found, there]) in self.classes.iter().enumerate() {
            let union = found + there - hits;
            let iou = *hits as f64 / union as f64;
            all.extend((union > 0).then_some(iou));
            let iou = if union > 0 { format!("{:.2} %", 100.0 * iou) } else { "–".into() };
            let cells = [there.to_string(), found.to_string(), hits.to_string(), iou];
            let cells = cells.map(|cell| format!("<td class=\"number\">{cell}</td>")).concat();
            let _ = writeln!(html, "<tr><td>{class}</td>{cells}</tr>");
        }
        let mean = 100.0 * all.iter().sum::<f64>() / all.len().max(1) as f64;
        format!(
            "<div class=\"scroll\">{html}<tr><td>mean</td><td></td><td></td><td></td>\
             <td class=\"number\">{mean:.2} %</td></tr></table></div>\n"
        )
    }
}

/// A file of predictions as a part of the page.
///
/// # Errors
/// `Data`: it cannot be read, or has nothing beside which it could be drawn.
pub fn section(name: &str, file: &PredictedFields) -> Result<Section> {
    let of_classes = file.is_of_classes;
    let unit = if file.unit.is_empty() { String::new() } else { format!(" {}", file.unit) };
    let (mut total, mut pairs) = (Total::default(), Vec::new());
    let (samples, apart) = (file.samples, file.numbers().div_ceil(POINTS).max(1));
    file.each_piece(|before, output, target| {
        total.add(output, target, of_classes);
        let first = (apart - before % apart) % apart;
        let of =
            (first..output.len()).step_by(apart).map(|at| (f64::from(target[at]), f64::from(output[at])));
        pairs.extend(of.filter(|(target, _)| !target.is_nan()));
    })?;
    let mut shown = vec![0, samples / 2, samples.saturating_sub(1)];
    shown.dedup();
    let mut figures = Vec::new();
    for sample in shown {
        let title = format!("{name}, {}", file.name(sample)?);
        figures.extend(of_sample(file, sample, &format!("{name}-{sample}"), title)?);
    }
    if total.count == 0.0 {
        return Err(Error::usage(format!("{name}: none of its points has a target")));
    }
    if !of_classes && !pairs.is_empty() {
        figures.extend(scatter(name, &pairs, &unit)?);
    }
    let about = format!("{samples} samples, {}.", total.said(&unit));
    let table = if of_classes { total.table() } else { String::new() };
    let text = format!("<p>{}</p>\n{table}", escape(&about));
    Ok(Section { title: format!("Predicted and true: {name}"), text, figures })
}

/// Maps of a sample with places on two axes or more, of which the first channel and the middle of what lies before are
/// drawn; curves of one with places on one; nothing of a vector.
fn of_sample(file: &PredictedFields, sample: usize, label: &str, title: String) -> Result<Option<Figure>> {
    let places = file.places();
    match *places {
        [] | [1] | [1, 1] => Ok(None),
        [length] => {
            let apart = length.div_ceil(POINTS);
            let [output, target] = file.map(sample, &[apart])?;
            let curve = |label: &str, values: &[f32], colour| {
                let points = (0..).step_by(apart).zip(values).map(|(x, &y)| (x as f64, f64::from(y)));
                ChartLine::new(label, points.collect(), Mark::Line, colour)
            };
            let x = ChartAxis::new("place", Scale::Linear);
            let y = ChartAxis::new(if file.unit.is_empty() { "number" } else { &file.unit }, Scale::Linear);
            let words = [label, &title, "The first channel along its places."];
            Figure::of_lines(words, [&x, &y], &[curve("true", &target, 0), curve("predicted", &output, 1)])
        }
        [.., height, width] => {
            let apart = height.max(width).div_ceil(SIDE);
            let ([output, target], width) = (file.map(sample, &[apart; 2])?, width.div_ceil(apart));
            let svg = maps([&output, &target], width, file.is_of_classes, &file.unit)?;
            let of_classes =
                "Classes, each in its colour; in the third map wrong ones are red. White has no target.";
            let of_numbers = "Both maps have one scale. The third is predicted less true, with a scale of its own. \
                              White has no target. Of several channels the first is drawn, of what is deep its middle, \
                              of long sides every so many places.";
            let caption = if file.is_of_classes { of_classes } else { of_numbers };
            Ok(Some(Figure::new(label, title, caption, svg)))
        }
    }
}

/// Three maps side by side, with rows of so many numbers: predicted, true and error.
fn maps([output, target]: [&[f32]; 2], width: usize, of_classes: bool, unit: &str) -> Result<String> {
    let both = output.iter().chain(target).copied().filter(|value| value.is_finite());
    let [low, high] = both.fold([f32::MAX, f32::MIN], |[low, high], v| [low.min(v), high.max(v)]);
    let errors: Vec<f32> = output.iter().zip(target).map(|(y, t)| y - t).collect();
    let most =
        errors.iter().filter(|error| error.is_finite()).fold(0f32, |most, error| most.max(error.abs()));
    let share = |value: f32, low: f32, high: f32| {
        if high > low { f64::from((value - low) / (high - low)) } else { 0.5 }
    };
    let of_value = |value: f32| match of_classes {
        true => chart::rgb(value as usize),
        false => between(&LOW_TO_HIGH, share(value, low, high)),
    };
    let of_error = |error: f32| match of_classes {
        true => [RIGHT, WRONG][usize::from(error != 0.0)],
        false => between(&ERRORS, share(error, -most, most)),
    };
    let height = (186.0 * (output.len() / width) as f64 / width as f64).clamp(12.0, 420.0);
    let unit = if unit.is_empty() { String::new() } else { format!(" {}", escape(unit)) };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 600 {0}\" width=\"600\" height=\"{0}\">\n",
        height + if of_classes { 24.0 } else { 60.0 }
    );
    for (at, (title, map)) in
        [("predicted", output), ("true", target), ("error", &errors[..])].into_iter().enumerate()
    {
        let left = 6.0 + 198.0 * at as f64;
        text(&mut svg, left + 93.0, 14.0, "middle", title);
        let picture = if at == 2 { png(map, width, of_error)? } else { png(map, width, of_value)? };
        image(&mut svg, [left, 20.0, 186.0, height], &picture);
    }
    let bar = |svg: &mut String, left: f64, wide: f64, stops: &[[f64; 3]], [low, high]: [f32; 2]| {
        let steps: Vec<f32> = (0..256).map(|step| step as f32 / 255.0).collect();
        let picture = png(&steps, steps.len(), |value| between(stops, f64::from(value)))?;
        let y = height + 28.0;
        image(svg, [left, y, wide, 10.0], &picture);
        text(svg, left, y + 26.0, "start", &format!("{low:.4}{unit}"));
        text(svg, left + wide, y + 26.0, "end", &format!("{high:.4}{unit}"));
        Ok::<(), Error>(())
    };
    if !of_classes {
        bar(&mut svg, 6.0, 384.0, &LOW_TO_HIGH, [low, high])?;
        bar(&mut svg, 402.0, 186.0, &ERRORS, [-most, most])?;
    }
    Ok(svg + "</svg>")
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" font-size=\"13\" fill=\"#464646\">{text}</text>"
    );
}

/// A picture of pixels, each as large as it has to be: from the left, from above, width and height.
fn image(svg: &mut String, [left, y, width, height]: [f64; 4], picture: &[u8]) {
    let _ = writeln!(
        svg,
        "<image x=\"{left}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" preserveAspectRatio=\"none\" \
         style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>",
        base64(picture)
    );
}

/// The colour at a share of the way along some.
fn between(stops: &[[f64; 3]], share: f64) -> [u8; 3] {
    let place = share.clamp(0.0, 1.0) * (stops.len() - 1) as f64;
    let before = (place as usize).min(stops.len() - 2);
    let part = place - before as f64;
    std::array::from_fn(|at| (stops[before][at] * (1.0 - part) + stops[before + 1][at] * part).round() as u8)
}

/// A map as a picture, of which a pixel is a place.
fn png(map: &[f32], width: usize, colour: impl Fn(f32) -> [u8; 3]) -> Result<Vec<u8>> {
    let pixel = |&value: &f32| if value.is_nan() { MISSING } else { colour(value) };
    let pixels: Vec<u8> = map.iter().flat_map(pixel).collect();
    let wrong = |error: png::EncodingError| Error::internal(format!("a map cannot be drawn: {error}"));
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, (map.len() / width) as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels)).map_err(wrong)?;
    Ok(bytes)
}

/// As RFC 4648 has it.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits =
            three.iter().enumerate().fold(0u32, |bits, (at, &byte)| bits | u32::from(byte) << (16 - 8 * at));
        for at in 0..4 {
            let letter = char::from(LETTERS[(bits >> (18 - 6 * at)) as usize & 63]);
            text.push(if at <= three.len() { letter } else { '=' });
        }
    }
    text
}

/// Predicted over true numbers.
fn scatter(name: &str, pairs: &[(f64, f64)], unit: &str) -> Result<Option<Figure>> {
    let ends = pairs.iter().fold([f64::MAX, f64::MIN], |[low, high], (t, _)| [low.min(*t), high.max(*t)]);
    let diagonal = ends.map(|end| (end, end)).to_vec();
    let lines =
        [ChartLine::new("", pairs.to_vec(), Mark::Dots, 0), ChartLine::new("", diagonal, Mark::Dashes, 6)];
    let [x, y] = ["true", "predicted"].map(|what| ChartAxis::new(format!("{what}{unit}"), Scale::Linear));
    let caption = format!(
        "{} points, evenly spread over all; those that are predicted well lie on the line.",
        pairs.len()
    );
    let words = [&format!("{name}-scatter"), &format!("Predicted over true: {name}"), &*caption];
    Figure::of_lines(words, [&x, &y], &lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{FieldOrigin, FieldPredictions};

    #[test]
    fn bytes_are_letters_as_the_standard_has_them() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn colours_go_from_the_lowest_to_the_highest_and_what_is_missing_is_white() {
        assert_eq!(
            [0.0, 1.0, 2.0].map(|share| between(&ERRORS, share)),
            [[33, 102, 172], [178, 24, 43], [178, 24, 43]]
        );
        let map = [0.0, 1.0, f32::NAN, 0.5];
        let bytes = png(&map, 2, |value| between(&ERRORS, f64::from(value))).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut pixels = vec![0; 12];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, [33, 102, 172, 178, 24, 43, 255, 255, 255, 247, 247, 247]);
    }

    #[test]
    fn classes_are_counted_over_all_points_with_a_target() {
        let mut total = Total::default();
        total.add(&[0.0, 1.0, 1.0, 2.0, 0.0], &[0.0, 1.0, 0.0, f32::NAN, 3.0], true);
        assert_eq!(total.classes, [[1, 2, 2], [1, 2, 1], [0, 0, 0], [0, 0, 1]]);
        let table = total.table();
        for part in ["33.33 %", "50.00 %", "–", "0.00 %", "27.78 %"] {
            assert!(table.contains(part), "{part}: {table}");
        }
        assert!(total.said("").contains("4 points that have a target; 50.00 % are right"));
    }

    /// A file as `dltrain predict` writes it, of three classes at 2×3 places.
    #[test]
    fn a_file_of_classes_becomes_maps_and_a_table() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.h5");
        let samples = vec!["a.h5 n 0".to_string(), "a.h5 n 1".into()];
        let origin = FieldOrigin { samples, target: Some(vec![1, 2, 3]), ..FieldOrigin::default() };
        let mut file = FieldPredictions::create(&path, &origin, &[3, 2, 3], true).unwrap();
        // Scores whose largest are those of these classes.
        let scores = |classes: [usize; 6]| {
            let of = |class: usize| classes.map(|own| f32::from(u8::from(own == class)));
            [of(0), of(1), of(2)].concat()
        };
        file.push(&scores([0, 0, 1, 1, 2, 2]), &[0.0, 1.0, 1.0, 1.0, 2.0, f32::NAN]).unwrap();
        file.push(&scores([0; 6]), &[0.0; 6]).unwrap();
        file.finish().unwrap();
        let target = hdf5::File::open(&path).unwrap().dataset("target").unwrap();
        assert_eq!(target.shape(), [2, 2, 3], "as the classes");
        let read = PredictedFields::open(&path).unwrap().unwrap();
        assert_eq!((read.places(), read.is_of_classes), (vec![2, 3], true));
        let section = section("out", &read).unwrap();
        assert!(section.text.contains("11 points that have a target; 90.91 % are right"), "{}", section.text);
        // Seven of eight, two of three, one of one.
        for part in ["87.50 %", "66.67 %", "100.00 %", "84.72 %"] {
            assert!(section.text.contains(part), "{part}: {}", section.text);
        }
        assert_eq!(section.figures.len(), 2);
        let figure = &section.figures[0];
        assert_eq!((figure.title.as_str(), figure.svg.matches("<image").count()), ("out, a.h5 n 0", 3));
    }

    /// What is read piece by piece, of many small samples and of few that are larger than a piece: the sums and the
    /// points are those of all numbers at once, and a map is the middle of what is deep, every so many places.
    #[test]
    fn files_of_any_size_are_read_in_pieces() {
        let directory = tempfile::tempdir().unwrap();
        for (samples, shape, target) in [
            (100_000, &[3][..], &[3][..]),
            (2, &[1, 3, 700, 1100], &[3, 700, 1100]),
            (3, &[2, 9_000], &[2, 9_000]),
        ] {
            let path = directory.path().join(format!("{samples}.h5"));
            let names = (0..samples).map(|n| format!("n {n}")).collect();
            let origin =
                FieldOrigin { samples: names, target: Some(target.to_vec()), ..FieldOrigin::default() };
            let mut file = FieldPredictions::create(&path, &origin, shape, false).unwrap();
            let each: usize = shape.iter().product();
            let output = |at: usize| (at % 1009) as f32;
            let goal = |at: usize| if at.is_multiple_of(5) { f32::NAN } else { (at % 997) as f32 };
            let mut all = Total::default();
            for sample in 0..samples {
                let numbers =
                    |of: &dyn Fn(usize) -> f32| (0..each).map(|at| of(sample * each + at)).collect();
                let [y, t]: [Vec<f32>; 2] = [numbers(&output), numbers(&goal)];
                all.add(&y, &t, false);
                file.push(&y, &t).unwrap();
            }
            file.finish().unwrap();
            // Few chunks have many samples: each has an entry in a tree. A name takes some 40 bytes.
            let bytes = std::fs::metadata(&path).unwrap().len() as usize;
            assert!(bytes < 8 * samples * each + 50 * samples + 1_000_000, "{bytes}");
            let read = PredictedFields::open(&path).unwrap().unwrap();
            let mut next = 0;
            read.each_piece(|before, y, t| {
                assert_eq!((before, t.len()), (next, y.len()));
                let same = |(at, value): (usize, &f32)| *value == output(before + at);
                assert!(y.iter().enumerate().all(same));
                next += y.len();
            })
            .unwrap();
            assert_eq!(next, samples * each);
            let section = section("out", &read).unwrap();
            assert!(section.text.contains(&all.said("")), "{}", section.text);
            assert!(section.figures.iter().all(|figure| figure.svg.len() < 1_000_000));
        }
        let read = PredictedFields::open(&directory.path().join("2.h5")).unwrap().unwrap();
        let [y, t] = read.map(1, &[3, 3]).unwrap();
        let of = |row: usize, column: usize| 3 * 700 * 1100 + 700 * 1100 + 3 * row * 1100 + 3 * column;
        assert_eq!((y.len(), t.len()), (234 * 367, 234 * 367));
        assert_eq!([y[0], y[1], y[367]], [of(0, 0), of(0, 1), of(1, 0)].map(|at| (at % 1009) as f32));
    }
}
