//! Draws the measurements as SVG: curves over the number of partitions that move at once. Both axes are logarithmic.

use std::fmt::Write as _;

/// A curve. A point has the number of partitions that move at once, and a time in microseconds.
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) points: Vec<(u32, u64)>,
}

/// A diagram.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) curves: Vec<Curve>,
}

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 60.0;
const COLOURS: [&str; 8] = ["#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#566573", "#117a65", "#884ea0"];

/// Returns an image of the diagrams, one beside the other.
pub(crate) fn svg(panels: &[Panel]) -> String {
    let mut out = String::new();
    let (width, height) = (WIDTH * panels.len() as f64, HEIGHT + 20.0 * 9.0);
    let _ = write!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>"##
    );
    for (place, panel) in panels.iter().enumerate() {
        let _ = write!(out, r#"<g transform="translate({},0)">"#, WIDTH * place as f64);
        draw(&mut out, panel);
        out.push_str("</g>");
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, panel: &Panel) {
    let all = || panel.curves.iter().flat_map(|curve| &curve.points);
    let decade = |micros: u64| (micros.max(1) as f64).log10();
    let lowest = all().map(|(_, micros)| decade(*micros)).fold(f64::INFINITY, f64::min).floor().min(2.0);
    let highest = all().map(|(_, micros)| decade(*micros)).fold(3.0, f64::max).ceil();
    let x = |at_once: u32| MARGIN + f64::from(at_once).log2() / 10.0 * (WIDTH - 1.5 * MARGIN);
    let y = |decades: f64| HEIGHT - 40.0 - (decades - lowest) / (highest - lowest) * (HEIGHT - 80.0);
    let _ = write!(out, r#"<text x="{MARGIN}" y="24" font-size="13" font-weight="bold">{}</text>"#, panel.title);
    for decades in lowest as i32..=highest as i32 {
        let (at, label) = (y(f64::from(decades)), in_words(10_u64.pow(decades.max(0) as u32)));
        let _ = write!(
            out,
            r##"<path d="M{MARGIN} {at:.1}H{:.1}" stroke="#ddd"/><text x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"##,
            WIDTH - MARGIN / 2.0,
            MARGIN - 6.0,
            at + 4.0
        );
    }
    for at_once in [1, 4, 16, 64, 256, 1024] {
        let _ =
            write!(out, r#"<text x="{:.1}" y="{}" text-anchor="middle">{at_once}</text>"#, x(at_once), HEIGHT - 22.0);
    }
    let _ =
        write!(out, r#"<text x="{}" y="{}" text-anchor="middle">partitions at once</text>"#, WIDTH / 2.0, HEIGHT - 6.0);
    for (number, curve) in panel.curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<String> = curve
            .points
            .iter()
            .map(|(at_once, micros)| format!("{:.1},{:.1}", x(*at_once), y(decade(*micros))))
            .collect();
        let _ =
            write!(out, r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#, points.join(" "));
        let at = HEIGHT + 16.0 + 18.0 * number as f64;
        let _ = write!(
            out,
            r#"<path d="M{MARGIN} {at}h24" stroke="{colour}" stroke-width="2"/><text x="{}" y="{}">{}</text>"#,
            MARGIN + 32.0,
            at + 4.0,
            curve.name
        );
    }
}

fn in_words(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{} ms", micros / 1_000),
        _ => format!("{} s", micros / 1_000_000),
    }
}
