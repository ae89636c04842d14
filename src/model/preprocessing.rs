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
pub struct FieldScale {
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
    /// The first and the last place, where the file says where they are.
    pub ends: Option<[f32; 2]>,
    /// The unit of these.
    pub unit: Option<String>,
}

impl SampleAxis {
    /// "from 90 to -90 degrees_north"; `None` where nothing is said.
    pub fn said(&self) -> Option<String> {
        let [first, last] = self.ends?;
        let unit = self.unit.as_ref().map_or(String::new(), |unit| format!(" {unit}"));
        Some(format!("from {first} to {last}{unit}"))
    }

    /// Whether both say where places are, and the first of one is the last of the other's direction.
    pub fn is_opposite(&self, other: &SampleAxis) -> bool {
        let rises =
            |of: &SampleAxis| of.ends.filter(|[first, last]| first != last).map(|[first, last]| first < last);
        rises(self).zip(rises(other)).is_some_and(|(own, other)| own != other)
    }

    /// Whether both say where places are, and these differ by more than what numbers are rounded by.
    pub fn is_elsewhere(&self, other: &SampleAxis) -> bool {
        /// Of the distance between the ends.
        const ROUNDED: f32 = 1e-4;
        let Some(([first, last], other_ends)) = self.ends.zip(other.ends) else { return false };
        let near =
            |own: f32, other: f32| (own - other).abs() <= ROUNDED * (last - first).abs().max(f32::EPSILON);
        self.unit != other.unit || !near(first, other_ends[0]) || !near(last, other_ends[1])
    }
}

impl FieldScale {
    /// What a file says of a network's arrays; none where it says nothing.
    ///
    /// # Errors
    /// What is wrong with the text, in words that follow the file's name.
    pub fn from_text(text: &str) -> Result<Vec<FieldScale>, String> {
        let wrong = |what: &dyn std::fmt::Display| format!("what it says of its arrays ({FIELDS}): {what}");
        let read: Vec<FieldScale> = match text {
            "" => Vec::new(),
            _ => serde_json::from_str(text).map_err(|error| wrong(&error))?,
        };
        let is_sound = |of: &FieldScale| {
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
    /// Of the numbers of a `FieldScale`.
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
        let axis = |ends, unit: Option<&str>| {
            let of = SampleAxis { name: "lat".into(), ends, unit: unit.map(String::from) };
            let text = serde_json::to_string(&of).unwrap();
            assert_eq!(serde_json::from_str::<SampleAxis>(&text).unwrap(), of);
            of
        };
        let south = axis(Some([-90.0, 90.0]), Some("degrees_north"));
        assert_eq!(south.said().as_deref(), Some("from -90 to 90 degrees_north"));
        let with = |ends| axis(ends, Some("degrees_north"));
        let cases = [
            (with(Some([90.0, -90.0])), true, true),
            (with(Some([-90.0, 90.001])), false, false),
            (with(Some([-89.0, 90.0])), true, false),
            (with(Some([40.0, 30.0])), true, true),
            // One place has no direction.
            (with(Some([40.0, 40.0])), true, false),
            (with(None), false, false),
            (axis(Some([-90.0, 90.0]), None), true, false),
        ];
        for (other, elsewhere, opposite) in cases {
            assert_eq!(
                (other.is_elsewhere(&south), other.is_opposite(&south)),
                (elsewhere, opposite),
                "{other:?}"
            );
        }
        // What weights of older versions say.
        let old = r#"[{"field":"t[n,h,w]","scale":[1.0],"shift":[0.0],"unit":null}]"#;
        assert!(FieldScale::from_text(old).unwrap()[0].axes.is_empty());
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
