//! What numbers are like: how many there are, their mean and deviation, the least and the greatest.

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
}

impl Moments {
    /// Of no numbers.
    pub const NONE: Moments =
        Moments { count: 0.0, mean: 0.0, squares: 0.0, least: f64::INFINITY, most: f64::NEG_INFINITY };

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
        }
    }

    /// Their deviation, which is 0 of numbers that are all alike; NaN where there is none.
    pub fn deviation(&self) -> f64 {
        if self.least == self.most { 0.0 } else { (self.squares / self.count).sqrt() }
    }

    /// As five numbers; zeros where there are none, so that they can be added over ranks.
    pub fn numbers(&self) -> [f64; 5] {
        let Moments { count, mean, squares, least, most } = *self;
        if count > 0.0 { [count, mean, squares, least, most] } else { [0.0; 5] }
    }

    /// Of as many numbers as `numbers` gave.
    pub fn read(numbers: &[f64]) -> Moments {
        match *numbers {
            [count, mean, squares, least, most] if count > 0.0 => {
                Moments { count, mean, squares, least, most }
            }
            _ => Moments::NONE,
        }
    }
}
