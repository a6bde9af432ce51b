//! One colour a configuration, the same in every chart of the page.
//!
//! Where programs are compared, a program is a hue and its variants are shades of it; where one program is compared with
//! itself, every configuration has a hue of its own. Hues are told apart by people who do not see all colours: they
//! differ in lightness too, and curves have marks of different shapes besides.

use std::collections::BTreeSet;

use crate::experiment::{Configuration, ServerKind};

/// A colour on paper and one on a dark screen, as `#rrggbb`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ink {
    pub(super) light: String,
    pub(super) dark: String,
}

/// Hue (degrees) and chroma of OKLCH: those of the Okabe–Ito palette, without its yellow, which paper swallows.
const HUES: [(f64, f64); 6] = [
    (245.0, 0.125), // blue
    (50.0, 0.155),  // vermilion
    (165.0, 0.11),  // bluish green
    (345.0, 0.14),  // reddish purple
    (85.0, 0.125),  // ochre
    (215.0, 0.095), // sky
];
const GREY: (f64, f64) = (250.0, 0.012);

/// The ink of every configuration, in their order.
pub(super) fn inks(configurations: &[&Configuration]) -> Vec<Ink> {
    let family = |configuration: &Configuration| hue_of(configuration.server.kind);
    let families: BTreeSet<usize> = configurations.iter().filter_map(|configuration| family(configuration)).collect();
    let served = configurations.iter().filter(|configuration| family(configuration).is_some()).count();
    let mut alone = distinct(served).into_iter();
    let ink = |(at, configuration): (usize, &&Configuration)| {
        let mine = |other: &&&Configuration| family(other) == family(configuration);
        let before = configurations.iter().take(at).filter(mine).count();
        let all = configurations.iter().filter(mine).count();
        match family(configuration) {
            Some(_) if families.len() == 1 => alone.next().unwrap_or_else(|| shade(GREY, 0.5)),
            Some(hue) => shade(HUES[hue % HUES.len()], part(before, all)),
            None => shade(GREY, part(before, all)),
        }
    };
    configurations.iter().enumerate().map(ink).collect()
}

/// `count` inks that differ as much as they can: hues first, then shades of them.
fn distinct(count: usize) -> Vec<Ink> {
    let shades = count.div_ceil(HUES.len());
    (0..count)
        .map(|at| {
            // Neighbours in hue differ in lightness too, for those to whom the hues look alike.
            let alternate =
                if shades == 1 { [0.3, 0.6, 0.15, 0.75, 0.5, 0.9][at % 6] } else { part(at / HUES.len(), shades) };
            shade(HUES[at % HUES.len()], alternate)
        })
        .collect()
}

/// Which hue a program has; none for the host without one.
fn hue_of(kind: ServerKind) -> Option<usize> {
    match kind {
        ServerKind::None => None,
        ServerKind::VringdDisk | ServerKind::VringdDir | ServerKind::Vringd9p => Some(0),
        ServerKind::Virtiofsd | ServerKind::QemuStorageDaemon => Some(1),
        ServerKind::Qemu9p => Some(2),
        ServerKind::QemuVirtioBlk => Some(3),
    }
}

/// The middle of the `at`th of `count` equal parts of one.
fn part(at: usize, count: usize) -> f64 {
    if count < 2 { 0.3 } else { at as f64 / (count - 1) as f64 }
}

/// From dark (0) to light (1), within what stands out from the page.
fn shade((hue, chroma): (f64, f64), lightness: f64) -> Ink {
    Ink { light: hex(0.44 + 0.30 * lightness, chroma, hue), dark: hex(0.56 + 0.24 * lightness, chroma, hue) }
}

/// OKLCH to sRGB (Björn Ottosson, "A perceptual color space for image processing", 2020), clipped to what screens have.
fn hex(lightness: f64, chroma: f64, hue: f64) -> String {
    let (a, b) = (chroma * hue.to_radians().cos(), chroma * hue.to_radians().sin());
    let l = (lightness + 0.396_337_777_4 * a + 0.215_803_757_3 * b).powi(3);
    let m = (lightness - 0.105_561_345_8 * a - 0.063_854_172_8 * b).powi(3);
    let s = (lightness - 0.089_484_177_5 * a - 1.291_485_548_0 * b).powi(3);
    let linear = [
        4.076_741_662_1 * l - 3.307_711_591_3 * m + 0.230_969_929_2 * s,
        -1.268_438_004_6 * l + 2.609_757_401_1 * m - 0.341_319_396_5 * s,
        -0.004_196_086_3 * l - 0.703_418_614_7 * m + 1.707_614_701_0 * s,
    ];
    let [red, green, blue] = linear.map(|part| {
        let part = part.clamp(0.0, 1.0);
        let encoded = if part <= 0.003_130_8 { 12.92 * part } else { 1.055 * part.powf(1.0 / 2.4) - 0.055 };
        (encoded * 255.0).round() as u8
    });
    format!("#{red:02x}{green:02x}{blue:02x}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn known_colours_convert() {
        // From the CSS Color 4 tables: oklch(1 0 0) is white, oklch(0.628 0.2577 29.23) is red.
        assert_eq!(hex(1.0, 0.0, 0.0), "#ffffff");
        assert_eq!(hex(0.627_96, 0.257_68, 29.234), "#ff0000");
    }

    #[test]
    fn nobody_shares_a_colour() {
        for count in [1, 2, 6, 7, 18, 40] {
            let inks = distinct(count);
            assert_eq!(inks.len(), count);
            assert_eq!(inks.iter().map(|ink| &ink.light).collect::<HashSet<_>>().len(), count, "{count}");
            assert_eq!(inks.iter().map(|ink| &ink.dark).collect::<HashSet<_>>().len(), count, "{count}");
        }
    }
}
