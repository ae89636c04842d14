//! How images become what a network reads. Weights fit one way alone, and so their files say which it was.

use serde::{Deserialize, Serialize};

/// What names of classes, a list as JSON, are called in files.
pub const CLASS_NAMES: &str = "class_names";
/// What files of weights, checkpoints and ONNX files call it, where other programs keep texts of theirs.
pub const PREPROCESSING: &str = "dltrain.preprocessing";

/// What these files call the arrays that a network reads and gives, a list as JSON.
pub const FIELDS: &str = "dltrain.fields";

/// What these files call the shape of a sample of arrays, a list as JSON with channels first.
pub const SAMPLE: &str = "dltrain.sample";

/// An array as a network knows it: what each channel is multiplied by and what is then added, and where samples are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnedArray {
    /// The array, as the flag has it.
    pub field: String,
    /// Factors of its channels.
    pub scale: Vec<f32>,
    /// Added to its channels after that.
    pub shift: Vec<f32>,
    /// The unit of its numbers as its file has them, where that says it.
    pub unit: Option<String>,
    /// The axes of its samples, in a network's order; none where nothing is known of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub axes: Vec<SampleAxis>,
}

/// An axis of samples, and where on it they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleAxis {
    /// What the file calls it.
    pub name: String,
    /// How many places it has.
    pub along: usize,
    /// Some of these, evenly spread, with the first and the last; none where the file does not say where they are.
    pub places: Vec<f32>,
    /// Their unit.
    pub unit: Option<String>,
}

impl SampleAxis {
    /// Of all its places, some; none where one is no number.
    pub fn new(name: String, places: &[f32], unit: Option<String>) -> SampleAxis {
        /// Places that are kept.
        const KEPT: usize = 16;
        let (along, kept) = (places.len(), places.len().min(KEPT));
        let places = (0..kept).map(|at| places[at * (along - 1) / (kept - 1).max(1)]).collect::<Vec<f32>>();
        let are_numbers = places.iter().all(|place| place.is_finite());
        SampleAxis { name, along, places: if are_numbers { places } else { Vec::new() }, unit }
    }

    /// "from 90 to -90 degrees_north"; `None` where nothing is said.
    pub fn said(&self) -> Option<String> {
        let unit = self.unit.as_ref().map_or(String::new(), |unit| format!(" {unit}"));
        match (self.places.first()?, self.places.last()?) {
            (place, _) if self.along == 1 => Some(format!("at {place}{unit}")),
            (first, last) => Some(format!("from {first} to {last}{unit}")),
        }
    }

    /// Whether most places are above those before them, as longitudes are that begin again at 0.
    fn rises(&self) -> Option<bool> {
        let above = self.places.windows(2).filter(|pair| pair[0] < pair[1]).count();
        Some(2 * above >= self.places.len()).filter(|_| self.places.len() > 1)
    }

    /// Whether both say where places are, in opposite directions.
    pub fn is_opposite(&self, other: &SampleAxis) -> bool {
        self.rises().zip(other.rises()).is_some_and(|(own, other)| own != other)
    }

    /// Whether both say where places are, and these differ: by a tenth of the distance between two neighbours, of
    /// degrees but for whole turns, in their unit or in their number.
    pub fn is_elsewhere(&self, other: &SampleAxis) -> bool {
        if self.places.is_empty() || other.places.is_empty() {
            return false;
        }
        let between = |own: f32, other: f32| {
            let off = (own - other).abs();
            if self.is_of_degrees() { off.min((off - 360.0).abs()) } else { off }
        };
        let whole: f32 = self.places.windows(2).map(|pair| between(pair[0], pair[1])).sum();
        let apart = whole / self.along.max(2) as f32;
        let near = |(&own, &other): (&f32, &f32)| {
            between(own, other) <= (0.1 * apart).max(1e-5 * own.abs()).max(1e-6)
        };
        !self.has_unit_of(other)
            || self.along != other.along
            || !self.places.iter().zip(&other.places).all(near)
    }

    /// Whether places are latitudes or longitudes.
    pub fn is_of_degrees(&self) -> bool {
        self.unit.as_ref().is_some_and(|unit| unit.starts_with("degree"))
    }

    /// Whether both have no unit, or the same, as CF spells that of latitudes and longitudes in several ways.
    pub fn has_unit_of(&self, other: &SampleAxis) -> bool {
        fn called(unit: &str) -> &str {
            match unit.strip_prefix("degree").map(|rest| rest.trim_start_matches('s').trim_start_matches('_'))
            {
                Some("north" | "N") => "degrees_north",
                Some("east" | "E") => "degrees_east",
                _ => unit,
            }
        }
        self.unit.as_deref().map(called) == other.unit.as_deref().map(called)
    }
}

impl LearnedArray {
    /// What a file says of a network's arrays; none where it says nothing.
    ///
    /// # Errors
    /// What is wrong with the text, in words that follow the file's name.
    pub fn from_text(text: &str) -> Result<Vec<LearnedArray>, String> {
        let wrong = |what: &dyn std::fmt::Display| format!("what it says of its arrays ({FIELDS}): {what}");
        let read: Vec<LearnedArray> = match text {
            "" => Vec::new(),
            _ => serde_json::from_str(text).map_err(|error| wrong(&error))?,
        };
        let is_sound = |of: &LearnedArray| {
            of.scale.len() == of.shift.len()
                && of.scale.iter().chain(&of.shift).all(|value| value.is_finite())
        };
        if read.iter().all(is_sound) { Ok(read) } else { Err(wrong(&"numbers that cannot be")) }
    }
}

/// x·scale + shift of a channel, as (x − middle)·scale + rest, with a middle that is nearly a number's mean: the
/// difference then is exact, and nothing is lost of numbers that are large beside their deviation.
#[derive(Debug, Clone, Copy)]
pub struct ChannelScale {
    middle: f32,
    scale: f32,
    rest: f32,
}

impl ChannelScale {
    /// Of the numbers of a `LearnedArray`.
    pub fn new(scale: f32, shift: f32) -> ChannelScale {
        let [wide, of] = [scale, shift].map(f64::from);
        let middle = Some((-of / wide) as f32).filter(|middle| middle.is_finite()).unwrap_or(0.0);
        ChannelScale { middle, scale, rest: (of + f64::from(middle) * wide) as f32 }
    }

    /// What a number becomes.
    pub fn apply(self, x: f32) -> f32 {
        (x - self.middle) * self.scale + self.rest
    }

    /// The number that becomes this.
    pub fn undo(self, y: f32) -> f32 {
        (y - self.rest) / self.scale + self.middle
    }
}

/// What of an image evaluation looks at, and training that does not cut by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvaluationCrop {
    /// All of it, scaled to the model's size.
    Whole,
    /// The middle: the shorter side is scaled to 8/7 of the model's size, and that cut out.
    Centre,
}

/// What a network expects of its images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preprocessing {
    /// (C, H, W)
    pub image: [usize; 3],
    /// What is subtracted from each channel of pixels from 0 to 1.
    pub mean: Vec<f64>,
    /// What each channel is then divided by.
    pub std: Vec<f64>,
    /// What of an image it is shown.
    pub frame: EvaluationCrop,
}

impl Preprocessing {
    /// As files have it.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What a file says; `None` where it says nothing.
    ///
    /// # Errors
    /// What is wrong with the text, in words that follow the file's name.
    pub fn from_text(text: &str) -> Result<Option<Preprocessing>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        let read: Result<Preprocessing, _> = serde_json::from_str(text);
        let read = read.map_err(|error| format!("what it says of its images ({PREPROCESSING}): {error}"))?;
        let channels = read.image[0];
        let is_sound = matches!(channels, 1 | 3)
            && read.mean.len() == channels
            && read.std.len() == channels
            && Preprocessing::are_sound(&read.mean, &read.std);
        match is_sound {
            true => Ok(Some(read)),
            false => Err(format!("what it says of its images ({PREPROCESSING}) cannot be: {text}")),
        }
    }

    /// Whether images can be normalised by these: all are finite, and deviations above 0.
    pub fn are_sound(mean: &[f64], std: &[f64]) -> bool {
        mean.iter().all(|mean| mean.is_finite()) && std.iter().all(|std| std.is_finite() && *std > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_is_read_back_to_the_bit_or_refused() {
        let (mean, std) = (vec![0.1, 1.0 / 3.0, 0.406], vec![0.229, 0.224, 2.0 / 7.0]);
        let said = Preprocessing { image: [3, 64, 64], mean, std, frame: EvaluationCrop::Centre };
        assert_eq!(Preprocessing::from_text(&said.to_text()), Ok(Some(said.clone())));
        assert_eq!(Preprocessing::from_text(""), Ok(None));
        let wrong = [
            Preprocessing { std: vec![0.2, 0.0, 0.2], ..said.clone() },
            Preprocessing { std: vec![0.2, -0.1, 0.2], ..said.clone() },
            Preprocessing { mean: vec![0.5], ..said.clone() },
            Preprocessing { image: [2, 64, 64], ..said },
        ];
        for wrong in wrong {
            assert!(Preprocessing::from_text(&wrong.to_text()).is_err_and(|why| why.contains("cannot be")));
        }
        assert!(Preprocessing::from_text("{}").is_err_and(|why| why.contains("missing field")));
    }

    #[test]
    fn axes_lie_elsewhere_or_the_other_way_round() {
        let axis = |places: &[f32], unit: Option<&str>| {
            let of = SampleAxis::new("lat".into(), places, unit.map(String::from));
            let text = serde_json::to_string(&of).unwrap();
            assert_eq!(serde_json::from_str::<SampleAxis>(&text).unwrap(), of);
            of
        };
        let line = |first: f32, last: f32| {
            let places: Vec<f32> = (0..37).map(|at| first + (last - first) * at as f32 / 36.0).collect();
            axis(&places, Some("degrees_north"))
        };
        let south = line(-90.0, 90.0);
        assert_eq!(south.said().as_deref(), Some("from -90 to 90 degrees_north"));
        assert_eq!((south.along, south.places.len()), (37, 16));
        let mut stretched: Vec<f32> = (0..37).map(|at| -90.0 + 5.0 * at as f32).collect();
        stretched[1..36].iter_mut().for_each(|place| *place *= 0.9);
        let one = axis(&[40.0], Some("degrees_north"));
        assert_eq!(one.said().as_deref(), Some("at 40 degrees_north"));
        let cases = [
            (line(90.0, -90.0), true, true),
            (line(-90.0, 90.001), false, false),
            (line(-85.0, 95.0), true, false),
            (line(40.0, 30.0), true, true),
            (axis(&stretched, Some("degrees_north")), true, false),
            (axis(&[-90.0, 0.0, 90.0], Some("degrees_north")), true, false),
            // One place has no direction.
            (one, true, false),
            (axis(&[], Some("degrees_north")), false, false),
            // A whole turn, and another word for the unit.
            (line(270.0, 450.0), false, false),
            (SampleAxis { unit: Some("degreeN".into()), ..line(-90.0, 90.0) }, false, false),
            (SampleAxis { unit: Some("degrees_east".into()), ..line(-90.0, 90.0) }, true, false),
            (axis(&[f32::NAN, 1.0], Some("degrees_north")), false, false),
        ];
        for (other, elsewhere, opposite) in cases {
            let found = (other.is_elsewhere(&south), other.is_opposite(&south));
            assert_eq!(found, (elsewhere, opposite), "{other:?}");
        }
        // East of Greenwich they begin again.
        let around = axis(&[300.0, 320.0, 340.0, 0.0, 20.0], None);
        assert!(!around.is_opposite(&axis(&[-60.0, -40.0, -20.0, 0.0, 20.0], None)));
        // A cell to the east is elsewhere there too.
        let here = |first: f32| {
            let places: Vec<f32> = (0..8).map(|at| (first + at as f32) % 360.0).collect();
            axis(&places, Some("degrees_east"))
        };
        assert!(here(358.0).is_elsewhere(&here(357.0)) && !here(358.0).is_elsewhere(&here(358.05)));
        // What weights of older versions say.
        let old = r#"[{"field":"t[n,h,w]","scale":[1.0],"shift":[0.0],"unit":null}]"#;
        assert!(LearnedArray::from_text(old).unwrap()[0].axes.is_empty());
    }

    /// A million in steps of 1/16 is what f32 has; shifted first, differences would be multiples of a quarter.
    #[test]
    fn large_numbers_with_a_small_deviation_keep_their_differences() {
        let channel = ChannelScale::new(1.0 / 0.3, -1e6 / 0.3);
        let numbers: Vec<f32> = (-16..16).map(|step| 1e6 + step as f32 / 16.0).collect();
        let first = channel.apply(numbers[0]);
        for x in numbers {
            let y = channel.apply(x);
            assert!((y - first - (x - 999_999.0) / 0.3).abs() < 2e-6, "{x}: {y}");
            assert_eq!(channel.undo(y), x);
        }
        // A channel without a deviation has no middle.
        assert_eq!(ChannelScale::new(0.0, 3.0).apply(7.0), 3.0);
    }
}
