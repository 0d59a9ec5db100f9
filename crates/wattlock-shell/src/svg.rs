//! Parts of pictures as inline SVG: axes, and text that HTML takes. What a picture shows is its page's, and how it looks
//! the style sheet's.

use wattlock::telemetry::text::html;

/// One direction of a chart.
#[derive(Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Where it begins and ends, in pixels.
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis for these values, between two places: logarithmic if they lie `far` apart. `whole`: its ends are round.
    pub fn new(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64, far: f64, whole: bool) -> Axis {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        if low > 0.0 && high / low > far {
            let (low, high) = if whole {
                (
                    10_f64.powf((low.log10() * 2.0).floor() / 2.0),
                    10_f64.powf((high.log10() * 2.0).ceil() / 2.0),
                )
            } else {
                (low, high)
            };
            return Axis { low, high, logarithmic: true, from, to };
        }
        let low = if whole { low.min(0.0) } else { low };
        let room = if whole { (high - low) * 0.08 } else { 0.0 };
        let high = if high > low { high + room } else { low + 1.0 };
        Axis { low, high, logarithmic: false, from, to }
    }

    /// Logarithmic, with these ends.
    pub fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Axis {
        Axis { low, high, logarithmic: true, from, to }
    }

    /// Where a value lies.
    pub fn place(&self, value: f64) -> f64 {
        let share = match self.logarithmic {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + share * (self.to - self.from)
    }

    /// Powers of a base between its ends.
    pub fn powers(&self, base: f64) -> Vec<f64> {
        let power = |value: f64| value.log(base);
        let (first, last) =
            ((power(self.low) - 1e-9).ceil() as i32, (power(self.high) + 1e-9).floor() as i32);
        (first..=last).map(|at| base.powi(at)).collect()
    }

    /// Values to mark.
    pub fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = (self.high / self.low).log10();
            let steps: &[f64] = if decades < 1.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let first = self.low.log10().floor() as i32;
            let last = self.high.log10().ceil() as i32;
            let all =
                (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
            return all.filter(|tick| (self.low * 0.999..=self.high * 1.001).contains(tick)).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let magnitude = 10_f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * magnitude).find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        (first..first + 12)
            .map(|at| at as f64 * step)
            .take_while(|tick| *tick <= self.high * 1.0001)
            .collect()
    }
}

/// Which end of a text its place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its begin.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// Words in a picture: their baseline, and their class in the style sheet (none: plain).
pub fn words(at: (f64, f64), anchor: Anchor, class: &str, words: &str) -> String {
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\"{}>{}</text>",
        at.0,
        at.1,
        of_class(class),
        html(words)
    )
}

/// A line in a picture.
pub fn line(from: (f64, f64), to: (f64, f64), class: &str) -> String {
    format!("<path d=\"M{:.1} {:.1}L{:.1} {:.1}\"{}/>", from.0, from.1, to.0, to.1, of_class(class))
}

fn of_class(class: &str) -> String {
    if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") }
}

/// A picture of that size, with a name for those who do not see it. On a narrow screen it is scrolled before its text is
/// too small.
pub fn chart(width: f64, height: f64, name: &str, body: &str) -> String {
    format!(
        "<div class=\"chart\"><svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\" \
         aria-label=\"{}\">{body}</svg></div>",
        html(name)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lies_between_its_ticks() {
        for (values, far) in [(vec![1.0, 1024.0], 12.0), (vec![3.0, 7.0], 12.0), (vec![0.0, 0.4], 30.0)] {
            let axis = Axis::new(values.iter().copied(), 0.0, 100.0, far, true);
            let ticks = axis.ticks();
            assert!(ticks.len() >= 3, "{ticks:?}");
            for value in values {
                assert!((0.0..=100.0).contains(&axis.place(value)), "{value}");
            }
        }
    }

    #[test]
    fn powers_lie_on_the_axis_ends_included() {
        let axis = Axis::logarithmic(64.0, 16_384.0, 0.0, 100.0);
        assert_eq!(axis.powers(4.0), [64.0, 256.0, 1024.0, 4096.0, 16_384.0]);
        assert_eq!((axis.place(64.0), axis.place(1024.0), axis.place(16_384.0)), (0.0, 50.0, 100.0));
    }

    #[test]
    fn words_cannot_leave_their_element() {
        assert!(words((0.0, 0.0), Anchor::End, "t", "<a&\"").contains(">&lt;a&amp;&quot;</text>"));
    }
}
