//! What a plot draws, read back from its text.

use super::*;

fn plot(y: Axis) -> Plot {
    Plot::new("it", "A & B < C", Axis::log("tenants"), y)
}

/// The numbers behind `name="` in every element that begins with `<element `.
fn numbers(svg: &str, element: &str, name: &str) -> Vec<f64> {
    let attribute = format!(" {name}=\"");
    svg.lines()
        .filter(|line| line.starts_with(&format!("<{element} ")))
        .filter_map(|line| line.split(&attribute).nth(1))
        .filter_map(|rest| rest.split('"').next()?.parse().ok())
        .collect()
}

#[test]
fn every_element_is_closed_and_text_is_escaped() {
    let svg = plot(Axis::linear("µs")).curve("<one>", [(1.0, 2.0)]).svg();
    let opened = svg.matches('<').count() - svg.matches("</").count();
    assert_eq!(
        opened,
        svg.matches("/>").count() + svg.matches("</").count()
    );
    assert!(svg.contains("A &amp; B &lt; C") && svg.contains("&lt;one&gt;"));
    assert!(svg.contains(">tenants<") && svg.contains(">µs<"));
}

#[test]
fn points_lie_inside_the_axes_and_larger_values_lie_higher() {
    let points = [(1.0, 0.2), (10.0, 3.0), (1_024.0, 900.0)];
    for axis in [Axis::linear("µs"), Axis::log("µs")] {
        let svg = plot(axis).curve("one", points).svg();
        let (xs, ys) = (numbers(&svg, "circle", "cx"), numbers(&svg, "circle", "cy"));
        assert_eq!((xs.len(), ys.len()), (3, 3));
        assert!(xs.iter().all(|x| (LEFT..=RIGHT).contains(x)), "{xs:?}");
        assert!(ys.iter().all(|y| (TOP..=BOTTOM).contains(y)), "{ys:?}");
        assert!(xs.is_sorted_by(|a, b| a < b) && ys.is_sorted_by(|a, b| a > b));
    }
}

#[test]
fn a_factor_is_the_same_distance_anywhere_on_a_log_axis() {
    let points = [(1.0, 1.0), (2.0, 1.0), (4.0, 1.0), (8.0, 1.0)];
    let svg = plot(Axis::linear("µs")).curve("one", points).svg();
    let xs = numbers(&svg, "circle", "cx");
    let steps: Vec<f64> = xs.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        steps.iter().all(|step| (step - steps[0]).abs() < 0.2),
        "{steps:?}"
    );
}

#[test]
fn what_has_no_place_on_an_axis_is_left_out() {
    let points = [
        (1.0, 0.0),
        (2.0, f64::NAN),
        (0.0, 1.0),
        (3.0, f64::INFINITY),
        (4.0, 5.0),
    ];
    let svg = plot(Axis::log("µs")).curve("one", points).svg();
    assert_eq!(numbers(&svg, "circle", "cx").len(), 1);
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn a_plot_without_a_point_still_has_its_axes() {
    for axis in [Axis::linear("µs"), Axis::log("µs")] {
        let svg = plot(axis).curve("none", []).svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.contains(">10<"));
    }
}

#[test]
fn ticks_are_round_numbers() {
    let ticks = |scale, values: [f64; 2]| Ruler::new(scale, values.into_iter(), 0.0, 1.0).ticks();
    let labels = |ticks: Vec<f64>| ticks.into_iter().map(short).collect::<Vec<_>>();
    assert_eq!(
        labels(ticks(Scale::Linear, [3.0, 17_400.0])),
        ["0", "5k", "10k", "15k"]
    );
    assert_eq!(
        labels(ticks(Scale::Log, [1_000.0, 1_000_000.0])),
        ["1k", "10k", "100k", "1M"]
    );
    assert_eq!(labels(ticks(Scale::Log, [1.0, 8.0])), ["1", "2", "5"]);
    assert_eq!(
        labels(ticks(Scale::Doubling, [1.0, 8.0])),
        ["1", "2", "4", "8"]
    );
}
