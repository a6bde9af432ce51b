//! One colour a configuration, the same in every chart of its experiment.
//!
//! Where programs are compared, a program is a hue and its variants are shades of it; where one program is compared with
//! itself, every configuration has a hue of its own. The page makes colours of these for its light and its dark form.

use std::collections::BTreeSet;

use serde::Serialize;

use super::facet::{Group, Part};
use crate::experiment::{Configuration, Experiment, ServerKind};

/// How many hues the page has; its grey is beside them.
const HUES: usize = 6;

/// A colour, and the mark of curves that have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Ink {
    /// Which of the page's hues; none is grey.
    hue: Option<usize>,
    /// From dark (0) to light (1).
    shade: f64,
    /// Which mark: curves can be told apart without their colours.
    mark: usize,
}

/// The ink of every configuration, in their order. Points of one curve share theirs, and so do configurations and curves of
/// several tables whose names differ in the table alone.
pub(super) fn of(experiment: &Experiment, parts: &[Part], groups: &[Group<'_>]) -> Vec<Ink> {
    let mut keys: Vec<&str> = Vec::new();
    let mut heads: Vec<&Configuration> = Vec::new();
    let mut places = Vec::with_capacity(experiment.configurations.len());
    for configuration in &experiment.configurations {
        let key =
            if parts.is_empty() { in_table(groups, &configuration.name) } else { on_curve(parts, &configuration.name) };
        let known = keys.iter().position(|known| *known == key);
        places.push(known.unwrap_or(keys.len()));
        if known.is_none() {
            keys.push(key);
            heads.push(configuration);
        }
    }
    let inks = inks(&heads);
    places.into_iter().filter_map(|place| inks.get(place).cloned()).collect()
}

/// The name, within its panel, of the curve that a configuration is a point of, or the configuration's own.
fn on_curve<'a>(parts: &'a [Part], name: &'a str) -> &'a str {
    let holds = |place: &Option<String>| place.as_deref() == Some(name);
    let mut curves = parts.iter().flat_map(|part| &part.curves);
    curves.find(|curve| curve.configurations.iter().any(holds)).map_or(name, |curve| &curve.short)
}

/// A configuration's name within its table.
fn in_table<'a>(groups: &'a [Group<'_>], name: &'a str) -> &'a str {
    let mut named = groups.iter().flat_map(|group| &group.configurations);
    named.find(|named| named.name == name).map_or(name, |named| &named.short)
}

/// An ink for each of what has one of its own.
fn inks(configurations: &[&Configuration]) -> Vec<Ink> {
    let family = |configuration: &Configuration| hue_of(configuration.server.kind);
    let families: BTreeSet<usize> = configurations.iter().filter_map(|configuration| family(configuration)).collect();
    let ink = |(mark, configuration): (usize, &&Configuration)| {
        let mine = |other: &&&Configuration| family(other) == family(configuration);
        let before = configurations.iter().take(mark).filter(mine).count();
        let all = configurations.iter().filter(mine).count();
        match family(configuration) {
            Some(_) if families.len() == 1 => distinct(before, all, mark),
            hue => Ink { hue, shade: part(before, all), mark },
        }
    };
    configurations.iter().enumerate().map(ink).collect()
}

/// The `at`th of `count` inks that differ as much as they can: hues first, then shades of them.
fn distinct(at: usize, count: usize, mark: usize) -> Ink {
    // Neighbours in hue differ in lightness too, for those to whom the hues look alike.
    const ALTERNATE: [f64; HUES] = [0.3, 0.6, 0.15, 0.75, 0.5, 0.9];
    let shades = count.div_ceil(HUES);
    let shade = if shades == 1 { ALTERNATE[at % HUES] } else { part(at / HUES, shades) };
    Ink { hue: Some(at % HUES), shade, mark }
}

/// Which hue a program has; none for the host without one.
fn hue_of(kind: ServerKind) -> Option<usize> {
    match kind {
        ServerKind::None => None,
        ServerKind::VringdDisk | ServerKind::VringdScsi | ServerKind::VringdDir | ServerKind::Vringd9p => Some(0),
        ServerKind::Virtiofsd | ServerKind::QemuStorageDaemon => Some(1),
        ServerKind::Qemu9p => Some(2),
        ServerKind::QemuVirtioBlk => Some(3),
    }
}

/// Where the `at`th of `count` shades lies between the first and the last.
fn part(at: usize, count: usize) -> f64 {
    if count < 2 { 0.3 } else { at as f64 / (count - 1) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_shares_a_colour() {
        for count in [1, 2, 6, 7, 18, 40] {
            let inks: Vec<Ink> = (0..count).map(|at| distinct(at, count, 0)).collect();
            for (at, ink) in inks.iter().enumerate() {
                assert!(!inks[..at].contains(ink), "{count}");
            }
        }
    }
}
