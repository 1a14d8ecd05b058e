// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `gdrfab-perf plot`: draws one or more files of results, each as a line over the sizes. Latencies and bandwidths have only
//! the sizes in common, so each has a panel.

use crate::axes;
use crate::cli::{Args, Word};
use crate::results::{Results, tame};
use crate::save;
use gdrfab::error::{self, Error, errno};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::{
    BLACK, ChartBuilder, Circle, Color, DrawingArea, IntoDrawingArea, IntoFont, PathElement, RGBColor, SVGBackend, ShapeStyle, WHITE,
};

pub const HELP: &str = "\
gdrfab-perf plot: a drawing of results over the sizes

Usage: gdrfab-perf plot -o OUT.svg [options] [--label TEXT] FILE.json...

Each FILE is what a run wrote with --out or --json, and becomes a line; latencies and bandwidths get a panel each.

  -o, --out OUT.svg   the drawing
      --label TEXT    what the FILE that follows is called (its test, provider, path and memory)
      --title TEXT    the title
      --figure KEY    this figure of the results, such as t_p99_usec or msg_rate_mpps, instead of t_typical_usec or
                      bw_average_mb_s; times, and rates over sizes that differ by 100 times and
                      more, are drawn to a logarithmic scale
  -h, --help          this text
";

#[derive(Debug, Default)]
pub struct Plot {
    out: String,
    title: Option<String>,
    figure: Option<String>,
    /// The names of the files, each with its label.
    files: Vec<(String, Option<String>)>,
}

/// Colours that most colour-blind people distinguish (after Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
/// The points of the lines: filled and hollow in each colour.
const MAX_FILES: usize = 2 * COLORS.len();
const WIDTH: u32 = 960;
const PANEL: u32 = 440;
const HEAD: u32 = 44;
const ENTRY: u32 = 22;
const FONT: &str = "sans-serif";

/// Parses the rest of the command line; `None` if only help is wanted.
pub fn parse(mut args: Args) -> Result<Option<Plot>, String> {
    let mut plot = Plot::default();
    let mut label = None;
    while let Some(word) = args.next()? {
        match word {
            Word::Plain(file) => plot.files.push((file, label.take())),
            Word::Option(option) => match option.as_str() {
                "-o" | "--out" => plot.out = args.value(&option)?,
                "--label" => label = Some(tame(&args.value(&option)?)),
                "--title" => plot.title = Some(tame(&args.value(&option)?)),
                "--figure" => plot.figure = Some(args.value(&option)?),
                "-h" | "--help" => return Ok(None),
                _ => return Err(format!("plot {option}: there is no such option")),
            },
        }
    }
    if plot.out.is_empty() {
        return Err("plot: --out OUT.svg is needed".into());
    }
    if !plot.out.ends_with(".svg") {
        return Err(format!("plot --out {}: a name that ends in .svg is expected (other programs make other formats of it)", plot.out));
    }
    match (plot.files.len(), label) {
        (0, _) => Err("plot: which FILE.json?".into()),
        (_, Some(label)) => Err(format!("plot --label {label}: a FILE.json is expected after it")),
        (n, _) if n > MAX_FILES => Err(format!("plot: {n} files are more than the {MAX_FILES} that can be distinguished")),
        _ => Ok(Some(plot)),
    }
}

struct Series {
    label: String,
    figure: String,
    /// Sizes and values.
    points: Vec<(f64, f64)>,
    color: RGBColor,
    filled: bool,
}

pub fn run(plot: &Plot) -> error::Result<()> {
    save::check("--out", &plot.out)?;
    let files: Vec<Results> = plot.files.iter().map(|(name, _)| Results::load(name)).collect::<error::Result<_>>()?;
    let series = series(plot, &files)?;
    let title = plot.title.clone().unwrap_or_else(|| title(&files));
    let text = draw(&title, &series).map_err(|words| Error::new(errno::EIO, format!("--out {}: {words}", plot.out)))?;
    save::whole("--out", &plot.out, &text)
}

/// Each value once, in the order of first appearance.
fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    all.filter(|x| !x.is_empty()).for_each(|x| {
        if !seen.contains(&x) {
            seen.push(x);
        }
    });
    seen
}

fn title(files: &[Results]) -> String {
    let tests = distinct(files.iter().map(|f| f.test.as_str()));
    tame(&format!("gdrfab-perf: {}", tests.join(", ")))
}

fn series(plot: &Plot, files: &[Results]) -> error::Result<Vec<Series>> {
    let labels: Vec<String> = files.iter().map(default_label).collect();
    let mut all = Vec::new();
    for (i, file) in files.iter().enumerate() {
        let figure = plot.figure.as_deref().unwrap_or(file.kind.main_figure());
        let sizes = file.lines.iter().map(|line| line.bytes.get() as f64);
        let mut points: Vec<(f64, f64)> = sizes.zip(file.figures(figure)?).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let label = match &plot.files[i].1 {
            Some(label) => label.clone(),
            // Several runs of the same kind are named by their files.
            None if labels.iter().filter(|l| **l == labels[i]).count() > 1 => format!("{} ({})", labels[i], tame(&file.name)),
            None => labels[i].clone(),
        };
        let (color, filled) = (COLORS[i % COLORS.len()], i < COLORS.len());
        all.push(Series { label, figure: figure.to_string(), points, color, filled });
    }
    Ok(all)
}

/// Test, provider, path, and the kind of memory unless it is the usual one.
fn default_label(file: &Results) -> String {
    let mut words = vec![file.test.clone()];
    words.extend(file.about("provider"));
    let paths = distinct(file.lines.iter().map(|line| line.path.as_str()));
    words.extend((!paths.is_empty()).then(|| tame(&paths.join(" then "))));
    words.extend(file.about("complete").filter(|all| all == "false").map(|_| "incomplete".to_string()));
    let (here, there) = (file.about("memory"), file.about("remote_memory"));
    match (here, there) {
        (Some(here), Some(there)) if here == there => words.extend((here != "alloc").then_some(here)),
        (Some(here), Some(there)) => words.push(format!("{here} to {there}")),
        (here, _) => words.extend(here.filter(|here| here != "alloc")),
    }
    words.join(", ")
}

/// The label of the axis of a figure, as in `t_typical [us]`.
fn description(figure: &str) -> String {
    let units = [("_usec", "us"), ("_mb_s", "MB/s"), ("_gb_s", "GB/s"), ("_mpps", "million/s"), ("_percent", "%")];
    let named = units.into_iter().find_map(|(ending, unit)| Some(format!("{} [{unit}]", figure.strip_suffix(ending)?)));
    named.unwrap_or_else(|| tame(figure))
}

/// The least and the greatest of values above 0.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), x| (low.min(x), high.max(x)))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(title: &str, series: &[Series]) -> Result<String, String> {
    let panels = distinct(series.iter().map(|s| s.figure.as_str()));
    let height = HEAD + panels.len() as u32 * PANEL + series.len() as u32 * ENTRY + ENTRY;
    let mut text = String::new();
    paint(&mut text, height, title, series, &panels).map_err(|e| format!("drawing: {e}"))?;
    Ok(text)
}

type Drawn = Result<(), plotters::drawing::DrawingAreaErrorKind<std::io::Error>>;

fn paint(text: &mut String, height: u32, title: &str, series: &[Series], panels: &[&str]) -> Drawn {
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw_text(title, &(FONT, 20).into_font().color(&BLACK), (16, 14))?;
    let (_, mut rest) = root.split_vertically(HEAD);
    let sizes = bounds(series.iter().flat_map(|s| &s.points).map(|p| p.0));
    for figure in panels {
        let (upper, lower) = rest.split_vertically(PANEL);
        let shown: Vec<&Series> = series.iter().filter(|s| s.figure == *figure).collect();
        let (low, high) = bounds(shown.iter().flat_map(|s| &s.points).map(|p| p.1));
        match goes_over_decades(figure, sizes) {
            true => panel(&upper, sizes, axes::decades(low, high), figure, &shown)?,
            false => panel(&upper, sizes, 0.0..high * 1.02, figure, &shown)?,
        }
        rest = lower;
    }
    legend(&rest, series)?;
    root.present()
}

impl Series {
    fn line(&self) -> ShapeStyle {
        self.color.stroke_width(2)
    }

    /// Draws a point twice, so that a hollow one hides the line behind it.
    fn points(&self) -> [ShapeStyle; 2] {
        [if self.filled { self.color.filled() } else { WHITE.filled() }, self.color.stroke_width(1)]
    }
}

/// Times, and rates over sizes that differ by 100 times or more, go over decades: from 0, the small ones would be one flat line.
fn goes_over_decades(figure: &str, (least, greatest): (f64, f64)) -> bool {
    let rate = ["_mb_s", "_gb_s", "_mpps"].into_iter().any(|ending| figure.ends_with(ending));
    figure.ends_with("_usec") || rate && greatest / least >= 100.0
}

fn panel<Y>(area: &Area, sizes: (f64, f64), y: Y, figure: &str, series: &[&Series]) -> Drawn
where
    Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
{
    let mut builder = ChartBuilder::on(area);
    builder.margin(12).margin_right(24).x_label_area_size(44).y_label_area_size(76);
    let mut chart = builder.build_cartesian_2d(axes::sizes(sizes.0, sizes.1), y)?;
    chart
        .configure_mesh()
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(plotters::style::TRANSPARENT)
        .x_desc("bytes")
        .x_label_formatter(&axes::size)
        .y_desc(description(figure))
        .y_label_formatter(&axes::plain)
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .draw()?;
    for s in series {
        chart.draw_series([PathElement::new(s.points.clone(), s.line())])?;
        for style in s.points() {
            chart.draw_series(s.points.iter().map(|p| Circle::new(*p, 3, style)))?;
        }
    }
    Ok(())
}

/// Draws the legend under the panels, where it hides nothing.
fn legend(area: &Area, series: &[Series]) -> Drawn {
    for (i, s) in series.iter().enumerate() {
        let y = (i as u32 * ENTRY + ENTRY / 2) as i32;
        area.draw(&PathElement::new([(92, y), (122, y)], s.line()))?;
        for style in s.points() {
            area.draw(&Circle::new((107, y), 3, style))?;
        }
        area.draw_text(&s.label, &(FONT, 15).into_font().color(&BLACK), (132, y - 6))?;
    }
    Ok(())
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::results::unit::results;
    use serde_json::json;

    fn words(line: &str) -> Result<Option<Plot>, String> {
        parse(Args::new(line.split(' ').map(String::from)))
    }

    #[test]
    fn the_command_line_is_understood_and_mistakes_named() {
        let plot = words("-o x.svg a.json --label B b.json").unwrap().unwrap();
        assert_eq!(plot.files, [("a.json".to_string(), None), ("b.json".to_string(), Some("B".to_string()))]);
        for (line, word) in [
            ("a.json", "--out"),
            ("-o x.png a.json", "x.png"),
            ("-o x.svg", "FILE"),
            ("-o x.svg a.json --label B", "--label"),
            ("-o x.svg --frob a.json", "--frob"),
            (&format!("-o x.svg{}", " a.json".repeat(15)), "15 files"),
        ] {
            assert!(words(line).unwrap_err().contains(word), "{line}");
        }
        assert!(words("-h").unwrap().is_none());
    }

    #[test]
    fn times_and_rates_over_distant_sizes_go_over_decades() {
        let decades = |figure, greatest| goes_over_decades(figure, (64.0, greatest));
        assert!(decades("t_p99_usec", 64.0) && decades("bw_average_mb_s", 6400.0));
        assert!(!decades("bw_average_mb_s", 4096.0) && !decades("cpu_client_percent", 6400.0));
    }

    #[test]
    fn labels_say_what_a_run_was_and_tell_runs_apart() {
        let run = json!({"test": "write-lat", "provider": "shm", "memory": "alloc", "remote_memory": "cuda:0"});
        let rows = json!([{"bytes": 16, "t_typical_usec": 2, "path": "ipc"}, {"bytes": 8, "t_typical_usec": 1, "path": "direct"}]);
        let files = ["a", "b", "c"].map(|name| results(name, run.clone(), rows.clone()).unwrap());
        let plot = words("-o x.svg a b --label mine c").unwrap().unwrap();
        let series = series(&plot, &files).unwrap();
        assert_eq!(series[1].label, "write-lat, shm, ipc then direct, alloc to cuda:0 (b)");
        assert_eq!((series[2].label.as_str(), series[0].points[0]), ("mine", (8.0, 1.0)));
        let text = draw("<&>", &series).unwrap();
        assert!(text.contains("&lt;&amp;&gt;") && text.contains("t_typical [us]") && text.matches("<polyline").count() >= 3);
    }
}
