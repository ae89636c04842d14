//! Charts as SVG: lines, stacked bars and spans of time, drawn by plotters. Text is in the reader's sans-serif font;
//! how wide it will be is estimated.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{ChartAxis, Coordinates, Scale};
use crate::error::{Error, Result};

/// Colours that also those who see fewer of them can tell apart: Okabe and Ito, 2008.
const COLOURS: [(u8, u8, u8); 7] = [
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (60, 60, 60),
];
const INK: RGBColor = RGBColor(70, 70, 70);
const WIDTH: u32 = 600;
const HEIGHT: u32 = 330;
/// Heights of a row of bars, and of the axis below them.
const ROW: u32 = 30;
const BELOW: u32 = 52;
/// Where a legend begins, and the height of a line of it.
const KEY_LEFT: i32 = 12;
const KEY_HEIGHT: u32 = 20;
const TEXT: u32 = 14;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mark {
    Line,
    /// A line with its points marked.
    Points,
    /// Points alone, small ones.
    Dots,
    Dashes,
}

#[derive(Debug, Clone)]
pub struct ChartLine {
    /// For the legend; empty: not in it.
    pub label: String,
    pub points: Vec<(f64, f64)>,
    /// (x, least, most) around the points.
    pub band: Vec<(f64, f64, f64)>,
    pub mark: Mark,
    pub colour: usize,
}

impl ChartLine {
    /// Without a band.
    pub fn new(label: impl Into<String>, points: Vec<(f64, f64)>, mark: Mark, colour: usize) -> ChartLine {
        ChartLine { label: label.into(), points, band: Vec::new(), mark, colour }
    }
}

/// y over x, several of them.
///
/// # Errors
/// `Internal`: it cannot be drawn.
pub fn lines(x: &ChartAxis, y: &ChartAxis, lines: &[ChartLine]) -> Result<String> {
    let named = lines.iter().filter(|line| !line.label.is_empty());
    let key = |line: &ChartLine| Key::new(&line.label, colour(line.colour), MarkShape::Line(line.mark));
    let keys: Vec<Key> = named.map(key).collect();
    drawn(HEIGHT, &keys, |area| {
        let across = lines.iter().flat_map(|line| line.points.iter().map(|point| point.0));
        let up = lines.iter().flat_map(|line| {
            let band = line.band.iter().flat_map(|b| [b.1, b.2]);
            line.points.iter().map(|p| p.1).chain(band)
        });
        let (across, up) = (x.over(across), y.over(up));
        let mut chart = ChartBuilder::on(area)
            .margin_right(18)
            .margin_top(6)
            .x_label_area_size(48)
            .y_label_area_size(68)
            .build_cartesian_2d(across.clone(), up.clone())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.1))
            .axis_style(BLACK.mix(0.4))
            .label_style(font())
            .axis_desc_style(font())
            .x_desc(&x.label)
            .y_desc(&y.label)
            .x_labels(7)
            .y_labels(6)
            .x_label_formatter(&|value| across.text(*value))
            .y_label_formatter(&|value| up.text(*value))
            .draw()?;
        lines.iter().try_for_each(|line| draw_line(&mut chart, x.scale, y.scale, line))
    })
}

/// Rows of parts that lie end to end; `mark`: a place in a row, and what it is.
#[derive(Debug, Clone)]
pub struct ChartRow {
    pub label: String,
    /// One for each name.
    pub parts: Vec<f64>,
    pub mark: Option<f64>,
}

/// # Errors
/// `Internal`: it cannot be drawn.
pub fn bars(x: &ChartAxis, names: &[String], rows: &[ChartRow], mark: &str) -> Result<String> {
    let ends = rows.iter().flat_map(|row| [row.parts.iter().sum::<f64>(), row.mark.unwrap_or(0.0)]);
    let across = x.over(ends);
    let boxes = names.iter().enumerate();
    let mut keys: Vec<Key> = boxes.map(|(part, name)| Key::new(name, colour(part), MarkShape::Box)).collect();
    if rows.iter().any(|row| row.mark.is_some()) {
        keys.push(Key::new(mark, BLACK, MarkShape::Stroke));
    }
    drawn(ROW * rows.len() as u32 + BELOW, &keys, |area| {
        let labels: Vec<&str> = rows.iter().map(|row| row.label.as_str()).collect();
        let mut chart = rows_chart(area, x, &across, &labels)?;
        for (at, row) in rows.iter().enumerate() {
            let y = (rows.len() - 1 - at) as f64;
            let mut from = 0.0;
            for (part, length) in row.parts.iter().enumerate() {
                chart.draw_series([bar(from, from + length, [y + 0.18, y + 0.82], colour(part))])?;
                from += length;
            }
            if let Some(mark) = row.mark {
                let stroke = vec![(mark, y + 0.08), (mark, y + 0.92)];
                chart.draw_series([PathElement::new(stroke, BLACK.stroke_width(3))])?;
            }
        }
        Ok(())
    })
}

/// A row of `spans`: from start to end, of which the last part stands out. Above it what was rehearsed.
#[derive(Debug, Clone)]
pub struct ChartSpan {
    pub label: String,
    pub start: f64,
    pub end: f64,
    pub last: f64,
    /// From when to when.
    pub rehearsed: Vec<(f64, f64)>,
}

/// Spans of time below each other, and a line at each of `ends`: the first black, the second in the colour of what was
/// rehearsed.
///
/// # Errors
/// `Internal`: it cannot be drawn.
pub fn spans(x: &ChartAxis, spans: &[ChartSpan], names: [&str; 3], ends: &[(f64, &str)]) -> Result<String> {
    let rehearsed = || spans.iter().flat_map(|span| span.rehearsed.iter().map(|(_, to)| *to));
    let across =
        x.over(spans.iter().map(|span| span.end).chain(rehearsed()).chain(ends.iter().map(|end| end.0)));
    // What nothing is drawn of is not in the legend.
    let parts = if rehearsed().next().is_some() { 3 } else { 2 };
    let boxes = names.iter().enumerate().take(parts);
    let boxes = boxes.map(|(part, name)| Key::new(name, colour(part), MarkShape::Box));
    let ends = || ends.iter().zip([BLACK, colour(2)]);
    let strokes = ends().map(|(end, colour)| Key::new(end.1, colour, MarkShape::Stroke));
    let keys: Vec<Key> = boxes.chain(strokes).collect();
    let height = if spans.len() > 24 { 16 } else { 22 };
    // Of a row, from its bottom.
    let (own, above) = if parts == 3 { ([0.1, 0.62], [0.66, 0.9]) } else { ([0.18, 0.82], [0.0; 2]) };
    drawn(height * spans.len() as u32 + BELOW, &keys, |area| {
        let labels: Vec<&str> = spans.iter().map(|span| span.label.as_str()).collect();
        let mut chart = rows_chart(area, x, &across, &labels)?;
        for (at, span) in spans.iter().enumerate() {
            let y = (spans.len() - 1 - at) as f64;
            let cut = (span.end - span.last).max(span.start);
            let part = |from, to, part| bar(from, to, own.map(|edge| y + edge), colour(part));
            chart.draw_series([part(span.start, cut, 0), part(cut, span.end, 1)])?;
            let part = |&(from, to): &(f64, f64)| bar(from, to, above.map(|edge| y + edge), colour(2));
            chart.draw_series(span.rehearsed.iter().map(part))?;
        }
        let line = |(end, colour): (&(f64, &str), RGBColor)| {
            PathElement::new(vec![(end.0, 0.0), (end.0, spans.len() as f64)], colour.stroke_width(2))
        };
        chart.draw_series(ends().map(line))?;
        Ok(())
    })
}

fn bar(from: f64, to: f64, [low, high]: [f64; 2], colour: RGBColor) -> Rectangle<(f64, f64)> {
    Rectangle::new([(from, low), (to, high)], colour.filled())
}

type Drawing<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type SvgArea<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Coordinates, Y>>;

/// One entry of a legend.
struct Key {
    label: String,
    colour: RGBColor,
    shape: MarkShape,
}

impl Key {
    fn new(label: &str, colour: RGBColor, shape: MarkShape) -> Key {
        Key { label: label.into(), colour, shape }
    }
}

enum MarkShape {
    Line(Mark),
    Box,
    Stroke,
}

/// A chart of this height below its legend.
fn drawn(height: u32, keys: &[Key], draw: impl FnOnce(&SvgArea) -> Drawing<()>) -> Result<String> {
    let places = legend_places(keys);
    let above = places.last().map_or(0, |last| last.1 as u32 + KEY_HEIGHT + 4);
    let mut svg = String::new();
    let done = {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height + above)).into_drawing_area();
        let filled = area.fill(&WHITE).map_err(Box::<dyn std::error::Error>::from);
        let (top, below) = area.split_vertically(above);
        filled
            .and_then(|()| draw_legend(&top, keys, &places))
            .and_then(|()| draw(&below))
            .and_then(|()| Ok(area.present()?))
    };
    done.map_err(|error| Error::internal(format!("a chart cannot be drawn: {error}")))?;
    Ok(svg)
}

/// Where each entry stands: in lines from left to right.
fn legend_places(keys: &[Key]) -> Vec<(i32, i32)> {
    let (mut x, mut y) = (KEY_LEFT, 2);
    let place = |key: &Key| {
        let text = font().font.layout_box(&key.label).map_or(100, |(from, to)| to.0 - from.0);
        let width = 22 + text + 18;
        if x + width > WIDTH as i32 && x > KEY_LEFT {
            (x, y) = (KEY_LEFT, y + KEY_HEIGHT as i32);
        }
        x += width;
        (x - width, y)
    };
    keys.iter().map(place).collect()
}

fn draw_legend(area: &SvgArea, keys: &[Key], places: &[(i32, i32)]) -> Drawing<()> {
    for (key, &(x, y)) in keys.iter().zip(places) {
        let middle = y + KEY_HEIGHT as i32 / 2;
        let line = |from: i32, to: i32| {
            PathElement::new(vec![(x + from, middle), (x + to, middle)], key.colour.stroke_width(2))
        };
        match key.shape {
            MarkShape::Box => {
                area.draw(&Rectangle::new([(x, middle - 6), (x + 16, middle + 6)], key.colour.filled()))?
            }
            MarkShape::Stroke => {
                let ends = vec![(x + 8, middle - 7), (x + 8, middle + 7)];
                area.draw(&PathElement::new(ends, key.colour.stroke_width(3)))?;
            }
            MarkShape::Line(Mark::Dashes) => {
                [(0, 4), (7, 11), (14, 17)].into_iter().try_for_each(|(a, b)| area.draw(&line(a, b)))?
            }
            MarkShape::Line(mark) => {
                area.draw(&line(0, 17))?;
                if mark == Mark::Points {
                    area.draw(&Circle::new((x + 8, middle), 4, key.colour.filled()))?;
                }
            }
        }
        area.draw(&Text::new(
            key.label.clone(),
            (x + 22, middle),
            font().pos(Pos::new(HPos::Left, VPos::Center)),
        ))?;
    }
    Ok(())
}

/// The colour of a class or a curve.
pub fn rgb(index: usize) -> [u8; 3] {
    let RGBColor(red, green, blue) = colour(index);
    [red, green, blue]
}

fn colour(index: usize) -> RGBColor {
    let (red, green, blue) = COLOURS[index % COLOURS.len()];
    RGBColor(red, green, blue)
}

fn font<'a>() -> TextStyle<'a> {
    ("sans-serif", TEXT).into_font().color(&INK)
}

fn draw_line(chart: &mut Chart<Coordinates>, x: Scale, y: Scale, line: &ChartLine) -> Drawing<()> {
    let colour = colour(line.colour);
    let is_seen = |a: f64, b: f64| x.place(a).is_finite() && y.place(b).is_finite();
    let points: Vec<(f64, f64)> = line.points.iter().copied().filter(|&(a, b)| is_seen(a, b)).collect();
    if !line.band.is_empty() {
        let band = line.band.iter().filter(|&&(a, least, _)| is_seen(a, least));
        let above = band.clone().map(|&(a, _, most)| (a, most));
        let below = band.rev().map(|&(a, least, _)| (a, least));
        chart.draw_series([Polygon::new(above.chain(below).collect::<Vec<_>>(), colour.mix(0.2))])?;
    }
    match line.mark {
        Mark::Dashes => {
            chart.draw_series(DashedLineSeries::new(points.clone(), 6, 4, colour.stroke_width(1)))?
        }
        Mark::Dots => {
            let dots = points.iter().map(|&point| Circle::new(point, 2, colour.mix(0.5).filled()));
            chart.draw_series(dots)?;
            return Ok(());
        }
        _ => chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?,
    };
    if line.mark == Mark::Points {
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 4, colour.filled())))?;
    }
    Ok(())
}

/// A chart whose rows have names, the first on top.
fn rows_chart<'a, 'b>(
    area: &'a SvgArea<'b>,
    x: &ChartAxis,
    across: &Coordinates,
    labels: &[&str],
) -> Drawing<Chart<'a, 'b, RangedCoordf64>> {
    let width = |label: &&str| font().font.layout_box(label).map_or(100, |(from, to)| to.0 - from.0);
    let longest = labels.iter().map(width).max().unwrap_or(0).clamp(40, 240);
    let mut chart = ChartBuilder::on(area)
        .margin_right(18)
        .margin_top(2)
        .x_label_area_size(48)
        .y_label_area_size(longest + 16)
        .build_cartesian_2d(across.clone(), 0.0..labels.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.1))
        .axis_style(BLACK.mix(0.4))
        .label_style(font())
        .axis_desc_style(font())
        .x_desc(&x.label)
        .x_labels(7)
        .x_label_formatter(&|value| across.text(*value))
        .draw()?;
    let style = font().pos(Pos::new(HPos::Right, VPos::Center));
    for (at, label) in labels.iter().enumerate() {
        // Where the chart stands is known in pixels of the whole drawing, and text is placed in those of this part.
        let (left, middle) = chart.backend_coord(&(0.0, (labels.len() - 1 - at) as f64 + 0.5));
        let (_, above) = area.get_base_pixel();
        area.draw(&Text::new(label.to_string(), (left - 8, middle - above), style.clone()))?;
    }
    Ok(chart)
}
