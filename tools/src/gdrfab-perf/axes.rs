// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Logarithmic axes of a drawing, their ticks and their labels: sizes in powers of two, times and widely spread rates in decades.

use plotters::coord::combinators::{BindKeyPoints, LogCoord, WithKeyPoints};
use plotters::prelude::IntoLogRange;
use std::ops::Range;

/// The most ticks of an axis before their labels run into each other: across, where labels are short, and upwards.
const MOST_SIZES: i32 = 20;
const MOST: i32 = 14;

pub type Axis = WithKeyPoints<LogCoord<f64>>;

/// A range around `low..high`, and a tick at every power of two, or at every second, third and so on.
pub fn sizes(low: f64, high: f64) -> Axis {
    let step = (high / low).log2() as i32 / MOST_SIZES + 1;
    let ticks = (0..=64).step_by(step as usize).map(|n| 2f64.powi(n)).filter(|tick| (low..=high).contains(tick));
    (low / 1.25..high * 1.25).log_scale().with_key_points(ticks.collect())
}

/// A range around `low..high` that begins and ends at ticks: at 1, 2, 5 and 10 if there are few decades, else at every decade, or
/// at every second, third and so on.
pub fn decades(low: f64, high: f64) -> Axis {
    let decades = (high / low).log10();
    let steps: &[u8] = if decades <= 3.5 { &[1, 2, 5] } else { &[1] };
    let all = (-18..=18).step_by((decades as i32 / MOST + 1) as usize);
    let ticks: Vec<f64> = all.flat_map(|n| steps.iter().map(move |s| f64::from(*s) * 10f64.powi(n))).collect();
    // Without this, a value at an end of the range would touch the frame.
    let bottom = ticks.iter().copied().rfind(|tick| *tick < low / 1.05).unwrap_or(low / 2.0);
    let top = ticks.iter().copied().find(|tick| *tick > high * 1.05).unwrap_or(high * 2.0);
    let shown: Range<f64> = bottom..top;
    let within = ticks.into_iter().filter(|tick| (bottom..=top).contains(tick)).collect();
    shown.log_scale().with_key_points(within)
}

/// Writes a power of two as 64, 4K or 1M.
pub fn size(bytes: &f64) -> String {
    let units = ["", "K", "M", "G", "T", "P", "E"];
    let unit = (bytes.log2() / 10.0).clamp(0.0, 6.0) as usize;
    format!("{}{}", bytes / 1024f64.powi(unit as i32), units[unit])
}

/// Writes a number with only as many digits as a tick needs.
pub fn plain(x: &f64) -> String {
    if *x != 0.0 && !(1e-4..1e7).contains(x) {
        return format!("{x:.0e}");
    }
    let text = format!("{x:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod unit {
    use super::*;
    use plotters::coord::ranged1d::Ranged;

    fn labels(axis: Axis, low: f64, high: f64, label: fn(&f64) -> String) -> String {
        let places = [low, high].map(|value| axis.map(&value, (0, 100)));
        assert!(places.iter().all(|place| (0..=100).contains(place)), "{low} to {high}: {places:?}");
        assert!(axis.range().start < axis.range().end && axis.bold_points().len() <= MOST_SIZES as usize + 1, "{low} to {high}");
        axis.bold_points().iter().map(label).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round_and_few() {
        let of_sizes = |low, high| labels(sizes(low, high), low, high, size);
        assert_eq!(of_sizes(8.0, 4096.0), "8 16 32 64 128 256 512 1K 2K 4K");
        assert_eq!(of_sizes(8.0, (64 << 20) as f64), "16 64 256 1K 4K 16K 64K 256K 1M 4M 16M 64M");
        assert_eq!(of_sizes(64.0, 64.0), "64");
        let of_decades = |low, high| labels(decades(low, high), low, high, plain);
        assert_eq!(of_decades(0.3, 7.0), "0.2 0.5 1 2 5 10");
        assert_eq!(of_decades(0.3, 30000.0), "0.1 1 10 100 1000 10000 100000");
        for (low, high) in [(1e-15, 1e15), (1e-15, 1e-15), (1e15, 1e15), (1.0, 1.0), (999.0, 1001.0), (1500.0, 1501.0)] {
            assert!(of_decades(low, high).contains(' '), "{low} to {high}");
        }
        for (low, high) in [(1.0, 1.0), (1500.0, 1500.0), (1.0, u64::MAX as f64)] {
            of_sizes(low, high);
        }
    }
}
