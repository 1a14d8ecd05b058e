// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Axes of a drawing: sizes in powers of two, times and widely spread rates in decades, other values from 0 in round steps.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// The most ticks of an axis before their labels run into each other: across, where labels are short, and upwards.
const MOST_SIZES: i64 = 20;
const MOST: i64 = 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// In powers of two.
    Sizes,
    Decades,
    Linear,
}

/// An axis. A logarithmic axis is a linear axis of logarithms.
#[derive(Clone, Debug)]
pub struct Axis {
    scale: Scale,
    /// The range and the ticks, in logarithms if the axis is logarithmic.
    shown: Range<f64>,
    ticks: Vec<f64>,
    /// The range that was asked for.
    held: Range<f64>,
}

impl Axis {
    /// An axis from `low` to `high`, both above 0.
    pub fn over(scale: Scale, low: f64, high: f64) -> Axis {
        let (shown, ticks) = match scale {
            Scale::Sizes => sizes(low.log2(), high.log2()),
            Scale::Decades => decades(low.log10(), high.log10()),
            Scale::Linear => linear(high),
        };
        Axis { scale, shown, ticks, held: low..high }
    }

    /// True if the range spans a factor of 100 or more.
    pub fn spans_decades(&self) -> bool {
        self.scale == Scale::Sizes && self.held.end / self.held.start >= 100.0
    }

    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Sizes => value.log2(),
            Scale::Decades => value.log10(),
            Scale::Linear => value,
        }
    }

    fn value(&self, place: f64) -> f64 {
        match self.scale {
            Scale::Sizes => place.exp2(),
            Scale::Decades => 10f64.powf(place),
            Scale::Linear => place,
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let share = (self.place(*value) - self.shown.start) / (self.shown.end - self.shown.start);
        first + (share * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|place| self.value(*place)).collect()
    }

    fn range(&self) -> Range<f64> {
        self.value(self.shown.start)..self.value(self.shown.end)
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        if self.scale == Scale::Sizes { size(*value) } else { plain(*value) }
    }
}

/// The range, and a tick for every power of two, or for every second, third and so on.
fn sizes(low: f64, high: f64) -> (Range<f64>, Vec<f64>) {
    let (first, last) = (low.floor() as i64, high.ceil() as i64);
    let step = (last - first) / MOST_SIZES + 1;
    let ticks = (first..=last).filter(|n| n % step == 0 || last == first).map(|n| n as f64);
    (low - 0.3..high + 0.3, ticks.filter(|t| (low - 0.3..=high + 0.3).contains(t)).collect())
}

/// A range that begins and ends at ticks: at 1, 2, 5 and 10 if there are few decades, else at every decade, or at every
/// second, third and so on.
fn decades(low: f64, high: f64) -> (Range<f64>, Vec<f64>) {
    let (first, last) = (low.floor() as i64, high.ceil() as i64 + 1);
    let step = (last - first) / MOST + 1;
    let steps: &[f64] = if high - low <= 3.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all: Vec<f64> = (first - first.rem_euclid(step)..=last + step)
        .step_by(step as usize)
        .flat_map(|n| steps.iter().map(move |s| n as f64 + s.log10()))
        .collect();
    // Without this, a value at an end of the range would touch the frame.
    let bottom = all.iter().copied().rfind(|t| *t < low - 0.02).unwrap_or(low - 0.3);
    let top = all.iter().copied().find(|t| *t > high + 0.02).unwrap_or(high + 0.3);
    (bottom..top, all.into_iter().filter(|t| (bottom..=top).contains(t)).collect())
}

fn linear(high: f64) -> (Range<f64>, Vec<f64>) {
    let rough = high / 8.0;
    let decade = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * decade).find(|s| *s >= rough).unwrap_or(rough);
    let count = (high * 1.02 / step).ceil() as usize;
    (0.0..count as f64 * step, (0..=count).map(|n| n as f64 * step).collect())
}

/// Writes a size as 64, 4K, 1M or 1.5M.
fn size(bytes: f64) -> String {
    let units = ["", "K", "M", "G", "T", "P", "E"];
    let unit = ((bytes.log2() + 1e-9) / 10.0).floor().clamp(0.0, 6.0);
    format!("{}{}", plain(bytes / (unit * 10.0).exp2()), units[unit as usize])
}

/// Writes a number with only as many digits as a tick needs.
fn plain(x: f64) -> String {
    if x != 0.0 && !(1e-4..1e7).contains(&x) {
        return format!("{x:.0e}");
    }
    let text = format!("{x:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod unit {
    use super::*;

    fn labels(scale: Scale, low: f64, high: f64) -> String {
        let axis = Axis::over(scale, low, high);
        assert!((0..=100).contains(&axis.map(&low, (0, 100))) && (0..=100).contains(&axis.map(&high, (0, 100))), "{axis:?}");
        assert!(axis.shown.start < axis.shown.end && axis.ticks.len() <= MOST_SIZES as usize + 1, "{axis:?}");
        axis.ticks.iter().map(|t| axis.format_ext(&axis.value(*t))).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(labels(Scale::Sizes, 8.0, 4096.0), "8 16 32 64 128 256 512 1K 2K 4K");
        assert_eq!(labels(Scale::Sizes, 8.0, (64 << 20) as f64), "16 64 256 1K 4K 16K 64K 256K 1M 4M 16M 64M");
        assert_eq!(labels(Scale::Sizes, 64.0, 64.0), "64");
        assert_eq!(labels(Scale::Decades, 0.3, 7.0), "0.2 0.5 1 2 5 10");
        assert_eq!(labels(Scale::Decades, 0.3, 30000.0), "0.1 1 10 100 1000 10000 100000");
        assert_eq!(labels(Scale::Linear, 1.0, 18000.0), "0 5000 10000 15000 20000");
        let spans = |low, high| Axis::over(Scale::Sizes, low, high).spans_decades();
        assert_eq!([spans(64.0, 64.0), spans(64.0, 4096.0), spans(8.0, 1024.0)], [false, false, true]);
        for (low, high) in [(1e-15, 1e15), (1e-15, 1e-15), (1e15, 1e15), (1.0, 1.0), (999.0, 1001.0), (1500.0, 1501.0)] {
            labels(Scale::Decades, low, high);
            labels(Scale::Linear, low, high);
        }
        for (low, high) in [(1.0, 1.0), (1500.0, 1500.0), (1.0, u64::MAX as f64)] {
            labels(Scale::Sizes, low, high);
        }
    }
}
