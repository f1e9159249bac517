//! Plots as SVG.

use anyhow::anyhow;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::report::Plot;
use crate::stats::figure;

const SIZE: (u32, u32) = (760, 400);
/// Colours that colour-blind readers can tell apart. Source: Okabe and Ito, <https://jfly.uni-koeln.de/color/>.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 86, 86),
];

/// A point of a line: where, and from where to where it was measured.
struct Point {
    x: f64,
    y: f64,
    low: f64,
    high: f64,
}

/// Draws a plot. Points that a logarithmic axis cannot show are left out.
pub(crate) fn svg(plot: &Plot) -> anyhow::Result<String> {
    let lines: Vec<(&str, Vec<Point>)> = plot
        .lines
        .iter()
        .map(|(name, points)| {
            let points = points.iter().map(|(x, y)| Point {
                x: *x,
                y: y.median,
                low: y.low,
                high: y.high,
            });
            let shown = points.filter(|point| !plot.logarithmic || (point.x > 0.0 && point.low > 0.0));
            (name.as_str(), shown.collect())
        })
        .collect();
    let all = || lines.iter().flat_map(|(_, points)| points);
    let span = |low: fn(&Point) -> f64, high: fn(&Point) -> f64| {
        let low = all().map(low).fold(f64::INFINITY, f64::min);
        (low, all().map(high).fold(low, f64::max))
    };
    let (x, y) = (
        span(|point| point.x, |point| point.x),
        span(|point| point.low, |point| point.high),
    );
    let mut text = String::new();
    let drawn = if !x.0.is_finite() {
        Ok(())
    } else if plot.logarithmic {
        let range = |(low, high): (f64, f64)| (low * 0.8..high * 1.25).log_scale();
        draw(&mut text, plot, &lines, range(x), range(y))
    } else {
        // From zero, so that a height is a quantity; a range must not be empty.
        let range = |(_, high): (f64, f64)| 0.0..(high * 1.05).max(1e-6);
        draw(&mut text, plot, &lines, range(x), range(y))
    };
    drawn.map_err(|error| anyhow!("draw {:?}: {error}", plot.title))?;
    Ok(text)
}

fn draw<X, Y>(
    text: &mut String,
    plot: &Plot,
    lines: &[(&str, Vec<Point>)],
    x: X,
    y: Y,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(&plot.title, ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.15))
        .x_desc(&plot.x)
        .y_desc(&plot.y)
        .x_label_formatter(&|value| number(*value))
        .y_label_formatter(&|value| number(*value))
        .label_style(("sans-serif", 13))
        .draw()?;
    for ((name, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let line = points.iter().map(|point| (point.x, point.y));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        let measured = points.iter().filter(|point| point.low < point.high);
        chart.draw_series(measured.map(|point| {
            PathElement::new(
                [(point.x, point.low), (point.x, point.high)],
                colour.mix(0.6).stroke_width(5),
            )
        }))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 13))
        .draw()?;
    area.present()?;
    Ok(())
}

/// Formats a number on an axis: `0.5`, `20`, `10,000`.
fn number(value: f64) -> String {
    if value < 1000.0 {
        let text = figure(value);
        return match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text,
        };
    }
    let (thousands, rest) = ((value / 1000.0).floor(), value.rem_euclid(1000.0));
    format!("{thousands},{rest:03.0}")
}
