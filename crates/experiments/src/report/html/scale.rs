//! Axes: where a value lies, and which values are written beside it.

/// A range of values laid over a range of pixels.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    from_px: f64,
    to_px: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Linear,
    Log,
}

impl Scale {
    /// From 0 to a bit more than the largest of `values`.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>, from_px: f64, to_px: f64) -> Self {
        let high = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let high = if high > 0.0 { high * 1.02 } else { 1.0 };
        Self { kind: Kind::Linear, low: 0.0, high, from_px, to_px }
    }

    /// Logarithmic over `values` with a margin; values that have no logarithm do not count.
    pub(super) fn log(values: impl Iterator<Item = f64>, from_px: f64, to_px: f64) -> Self {
        let (low, high) = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        let (low, high) = if low <= high { (low, high) } else { (1.0, 1.0) };
        // A margin of a twentieth on both sides, and never a range so narrow that noise fills the chart.
        let margin = (high / low).powf(0.05).max(1.05);
        Self { kind: Kind::Log, low: low / margin, high: high * margin, from_px, to_px }
    }

    /// Where a value lies, held within the chart.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = match self.kind {
            Kind::Linear => (value - self.low) / (self.high - self.low),
            Kind::Log if value > 0.0 => (value / self.low).ln() / (self.high / self.low).ln(),
            Kind::Log => 0.0,
        };
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        self.from_px + part * (self.to_px - self.from_px)
    }

    /// Round values within the range, at least `apart_px` from each other, ascending.
    pub(super) fn ticks(&self, apart_px: f64) -> Vec<f64> {
        let mut ticks = match self.kind {
            Kind::Linear => self.linear_ticks(apart_px),
            Kind::Log => self.log_ticks(apart_px),
        };
        ticks.sort_by(f64::total_cmp);
        ticks
    }

    fn linear_ticks(&self, apart_px: f64) -> Vec<f64> {
        let count = ((self.to_px - self.from_px).abs() / apart_px).max(1.0);
        let raw = (self.high - self.low) / count;
        let decade = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * decade).find(|step| *step >= raw);
        let step = step.unwrap_or(10.0 * decade);
        // At most `count` of them; the bound only guards against a range that is none.
        (0..100).map(|at| self.low + f64::from(at) * step).take_while(|tick| *tick <= self.high).collect()
    }

    /// The rounder a value, the earlier it is offered; one too near to a rounder one is left out.
    fn log_ticks(&self, apart_px: f64) -> Vec<f64> {
        let mut ticks: Vec<f64> = Vec::new();
        for factors in [&[1.0][..], &[2.0, 5.0], &[1.5, 3.0, 7.0], &[1.25, 1.1, 1.75, 2.5, 4.0, 6.0, 8.0, 9.0]] {
            for decade in -6..=12 {
                for factor in factors {
                    let tick = factor * 10f64.powi(decade);
                    let clear = |other: &f64| (self.at(tick) - self.at(*other)).abs() >= apart_px;
                    if tick >= self.low && tick <= self.high && ticks.iter().all(clear) {
                        ticks.push(tick);
                    }
                }
            }
        }
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_begins_at_zero_and_ends_within() {
        let scale = Scale::from_zero([3.0, f64::NAN, 10.0].into_iter(), 100.0, 300.0);
        assert!((scale.at(0.0) - 100.0).abs() < 1e-9);
        assert!(scale.at(10.0) < 300.0 && scale.at(10.0) > 290.0);
        assert!((scale.at(1e9) - 300.0).abs() < 1e-9, "held within");
        assert_eq!(scale.ticks(40.0), [0.0, 5.0, 10.0]);
    }

    #[test]
    fn nothing_to_show_is_a_scale_too() {
        let scale = Scale::from_zero(std::iter::empty(), 0.0, 10.0);
        assert!(scale.at(0.5).is_finite());
        let scale = Scale::log([0.0, -1.0].into_iter(), 0.0, 10.0);
        assert!(scale.at(0.0).is_finite() && scale.at(f64::NAN).is_finite());
    }

    #[test]
    fn equal_ratios_are_equally_far() {
        let scale = Scale::log([0.25, 4.0].into_iter(), 0.0, 100.0);
        let (down, one, up) = (scale.at(0.5), scale.at(1.0), scale.at(2.0));
        assert!((one - 50.0).abs() < 1e-6 && ((up - one) - (one - down)).abs() < 1e-6);
    }

    #[test]
    fn ticks_are_round_and_apart() {
        let scale = Scale::log([0.2, 30.0].into_iter(), 0.0, 300.0);
        let ticks = scale.ticks(30.0);
        for rounder in [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0] {
            assert!(ticks.contains(&rounder), "{rounder} in {ticks:?}");
        }
        assert!(ticks.windows(2).all(|pair| scale.at(pair[1]) - scale.at(pair[0]) >= 30.0));
        let narrow = Scale::log([0.97, 1.02].into_iter(), 0.0, 300.0);
        assert!(narrow.ticks(30.0).contains(&1.0));
    }
}
