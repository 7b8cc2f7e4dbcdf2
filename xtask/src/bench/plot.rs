//! Curves as SVG, small enough to be read in a diff.

use core::fmt::Write as _;

use super::line::readable;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 430.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 744.0;
const TOP: f64 = 76.0;
const BOTTOM: f64 = 372.0;

/// Told apart also by people who see colours differently (Okabe and Ito), and each curve has dashes of its own.
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#555555",
];
const DASHES: [&str; 6] = ["none", "7 3", "2 3", "9 3 2 3", "4 2", "1 2"];

/// Curves over one pair of axes.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// The name of its file, without the ending.
    pub(crate) name: &'static str,
    title: String,
    x: Axis,
    y: Axis,
    curves: Vec<(String, Vec<(f64, f64)>)>,
}

/// An axis; its label says the unit.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    label: &'static str,
    scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// From zero.
    Linear,
    /// By decades. What is not above zero has no place on it.
    Log,
    /// The same, ticked at the powers of two.
    Doubling,
}

impl Axis {
    pub(crate) fn linear(label: &'static str) -> Self {
        Self {
            label,
            scale: Scale::Linear,
        }
    }

    pub(crate) fn log(label: &'static str) -> Self {
        Self {
            label,
            scale: Scale::Log,
        }
    }

    pub(crate) fn doubling(label: &'static str) -> Self {
        Self {
            label,
            scale: Scale::Doubling,
        }
    }

    fn holds(&self, value: f64) -> bool {
        match self.scale {
            Scale::Linear => value.is_finite() && value >= 0.0,
            Scale::Log | Scale::Doubling => value.is_finite() && value > 0.0,
        }
    }
}

impl Plot {
    pub(crate) fn new(name: &'static str, title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self {
            name,
            title: title.into(),
            x,
            y,
            curves: Vec::new(),
        }
    }

    /// The same plot with one more curve, through these points in this order.
    pub(crate) fn curve(
        mut self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let points = points
            .into_iter()
            .filter(|(x, y)| self.x.holds(*x) && self.y.holds(*y));
        let points = points.collect();
        self.curves.push((name.into(), points));
        self
    }

    /// The whole file.
    pub(crate) fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|(_, points)| points);
        let x = Ruler::new(self.x.scale, points().map(|point| point.0), LEFT, RIGHT);
        let y = Ruler::new(self.y.scale, points().map(|point| point.1), BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">\n\
             <title>{title}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n",
            title = escaped(&self.title)
        );
        text(&mut svg, (LEFT, 24.0), "font-size=\"16\"", &self.title);
        self.draw_axes(&mut svg, &x, &y);
        for (number, (name, points)) in self.curves.iter().enumerate() {
            let at = |point: &(f64, f64)| (x.at(point.0), y.at(point.1));
            draw_curve(&mut svg, number, points.iter().map(at).collect());
            draw_legend(&mut svg, number, name);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_axes(&self, svg: &mut String, x: &Ruler, y: &Ruler) {
        for tick in y.ticks() {
            let at = y.at(tick);
            segment(svg, (LEFT, at), (RIGHT, at), "#ddd");
            let place = (LEFT - 8.0, at + 4.0);
            text(svg, place, "text-anchor=\"end\"", &short(tick));
        }
        for tick in x.ticks() {
            let at = x.at(tick);
            segment(svg, (at, BOTTOM), (at, BOTTOM + 5.0), "#222");
            let place = (at, BOTTOM + 20.0);
            text(svg, place, "text-anchor=\"middle\"", &short(tick));
        }
        segment(svg, (LEFT, BOTTOM), (RIGHT, BOTTOM), "#222");
        segment(svg, (LEFT, TOP), (LEFT, BOTTOM), "#222");
        let middle = (f64::midpoint(LEFT, RIGHT), HEIGHT - 14.0);
        text(svg, middle, "text-anchor=\"middle\"", self.x.label);
        let height = f64::midpoint(TOP, BOTTOM);
        let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 20 {height})\"");
        text(svg, (20.0, height), &turned, self.y.label);
    }
}

/// Where values lie on an axis.
struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Ruler {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (least, most) = values.fold((f64::INFINITY, 0.0), |(least, most), value| {
            (value.min(least), value.max(most))
        });
        let (low, high) = match scale {
            Scale::Linear => (0.0, if most > 0.0 { most * 1.05 } else { 1.0 }),
            // A curve without a point leaves the axis one decade.
            Scale::Log | Scale::Doubling if least > most => (1.0, 10.0),
            Scale::Log | Scale::Doubling => (least / 1.15, most * 1.15),
        };
        Self {
            scale,
            low,
            high,
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log | Scale::Doubling => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        let from = |first, next: fn(f64) -> f64| {
            core::iter::successors(Some(first), move |tick| Some(next(*tick)))
                .take_while(|tick| *tick <= self.high)
        };
        let ticks: Vec<f64> = match self.scale {
            Scale::Linear => {
                let step = step_of(self.high);
                let ticks = core::iter::successors(Some(0.0), |tick| Some(tick + step));
                ticks.take_while(|tick| *tick <= self.high).collect()
            }
            Scale::Log => {
                // Over few decades the tens alone would leave the axis nearly bare.
                let wide = self.high / self.low > 300.0;
                let factors: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
                from(10_f64.powf(self.low.log10().floor()), |tick| tick * 10.0)
                    .flat_map(|decade| factors.iter().map(move |factor| decade * factor))
                    .collect()
            }
            Scale::Doubling => {
                from(2_f64.powf(self.low.log2().floor()), |tick| tick * 2.0).collect()
            }
        };
        let inside = |tick: &f64| (self.low..=self.high).contains(tick);
        ticks.into_iter().filter(inside).collect()
    }
}

/// The distance of about five ticks up to `high`: one, two or five times a power of ten.
fn step_of(high: f64) -> f64 {
    let rough = high / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let fitting = factors.into_iter().find(|factor| power * factor >= rough);
    power * fitting.unwrap_or(10.0)
}

fn draw_curve(svg: &mut String, number: usize, points: Vec<(f64, f64)>) {
    let (colour, dashes) = (COLOURS[number % 6], DASHES[number % 6]);
    let path: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>",
        path.join(" ")
    );
    // Many points make a line by themselves.
    if points.len() <= 24 {
        for (x, y) in points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
    }
}

/// Three curves in a line, two lines above the plot.
fn draw_legend(svg: &mut String, number: usize, name: &str) {
    let column = f64::from(u8::try_from(number % 3).unwrap_or(0));
    let line = f64::from(u8::try_from(number / 3).unwrap_or(0));
    let (x, y) = (LEFT + column * 224.0, 44.0 + line * 17.0);
    let (colour, dashes) = (COLOURS[number % 6], DASHES[number % 6]);
    let _ = writeln!(
        svg,
        "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>",
        x + 26.0
    );
    text(svg, (x + 32.0, y + 4.0), "", name);
}

fn segment(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, text: &str) {
    let space = if attributes.is_empty() { "" } else { " " };
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\"{space}{attributes}>{}</text>",
        escaped(text)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A tick's label: 20k instead of 20,000.
fn short(value: f64) -> String {
    if value >= 1e6 {
        format!("{}M", readable(value / 1e6))
    } else if value >= 1e3 {
        format!("{}k", readable(value / 1e3))
    } else {
        readable(value)
    }
}

#[cfg(test)]
mod tests;
