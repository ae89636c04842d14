//! What numbers are like: how many there are, their mean and deviation, the least and the greatest.

use super::element::RoundedOff;

/// Of some numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// How many there are.
    pub count: f64,
    /// Their mean; 0 where there is none.
    pub mean: f64,
    /// The sum of squares of what is between a number and the mean.
    squares: f64,
    /// The least of them.
    pub least: f64,
    /// The greatest of them, which lies before the least where there is none.
    pub most: f64,
    /// The least and the greatest of what f32 rounds off them, where that is known.
    rest: [f64; 2],
}

impl Moments {
    /// As how many numbers they are handed on.
    pub const NUMBERS: usize = 7;

    /// Of no numbers.
    pub const NONE: Moments = Moments {
        count: 0.0,
        mean: 0.0,
        squares: 0.0,
        least: f64::INFINITY,
        most: f64::NEG_INFINITY,
        rest: [f64::INFINITY, f64::NEG_INFINITY],
    };

    /// Of those that are finite.
    pub fn of(numbers: &[f32]) -> Moments {
        let finite = || numbers.iter().filter(|number| number.is_finite()).map(|&number| f64::from(number));
        let mut all = finite().fold(Moments::NONE, |all, number| Moments {
            count: all.count + 1.0,
            mean: all.mean + number,
            least: all.least.min(number),
            most: all.most.max(number),
            ..all
        });
        all.mean /= all.count.max(1.0);
        all.squares = finite().map(|number| (number - all.mean).powi(2)).sum();
        all
    }

    /// The same with what f32 has rounded off these numbers.
    pub fn rounded(mut self, numbers: &[f32], rest: &[RoundedOff]) -> Moments {
        for (_, RoundedOff(rest)) in numbers.iter().zip(rest).filter(|(number, _)| number.is_finite()) {
            let [low, high] = if rest.is_nan() { [f64::NEG_INFINITY, f64::INFINITY] } else { [*rest; 2] };
            self.rest = [self.rest[0].min(low), self.rest[1].max(high)];
        }
        self
    }

    /// Whether they are known to be one number, also before f32 rounded it.
    pub fn are_alike(&self) -> bool {
        self.least == self.most && self.rest[0] == self.rest[1]
    }

    /// Both together (Chan, Golub, LeVeque: updating formulae for variances, 1979).
    pub fn and(self, more: Moments) -> Moments {
        let (count, between) = (self.count + more.count, more.mean - self.mean);
        let share = more.count / count.max(1.0);
        Moments {
            count,
            mean: self.mean + between * share,
            squares: self.squares + more.squares + between * between * self.count * share,
            least: self.least.min(more.least),
            most: self.most.max(more.most),
            rest: [self.rest[0].min(more.rest[0]), self.rest[1].max(more.rest[1])],
        }
    }

    /// Their deviation, which is 0 of numbers that are all alike; NaN where there is none.
    pub fn deviation(&self) -> f64 {
        if self.least == self.most { 0.0 } else { (self.squares / self.count).sqrt() }
    }

    /// As numbers; zeros where there are none, so that they can be added over ranks.
    pub fn numbers(&self) -> [f64; Moments::NUMBERS] {
        let Moments { count, mean, squares, least, most, rest: [low, high] } = *self;
        if count > 0.0 { [count, mean, squares, least, most, low, high] } else { [0.0; Moments::NUMBERS] }
    }

    /// Of as many numbers as `numbers` gave.
    pub fn read(numbers: &[f64]) -> Moments {
        match *numbers {
            [count, mean, squares, least, most, low, high] if count > 0.0 => {
                Moments { count, mean, squares, least, most, rest: [low, high] }
            }
            _ => Moments::NONE,
        }
    }
}
