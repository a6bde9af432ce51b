//! Statistics of few samples: medians with their spread, ratios with intervals, and what noise hides.

mod spread;

pub use spread::{Interval, Ratio, Spread};
