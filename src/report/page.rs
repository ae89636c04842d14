//! The page: HTML with everything in it, that opens anywhere and prints well.

use super::axis::number;
use super::compare;
use super::figures::Figure;
use super::run::{Run, unit_of};

/// By it a report is known that may be replaced by a newer one.
pub const MARK: &str = "<!DOCTYPE html><!-- dltrain report -->";

const STYLE: &str = "
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; color: #222; background: #fff;
  max-width: 1180px; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #ddd; }
.about, figcaption, .note { color: #666; font-size: .85rem; }
.warn { background: #fff6e0; border-left: 4px solid #e69f00; padding: .4rem .8rem; margin: .6rem 0; font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #eee; vertical-align: top; }
td.number, th.number { text-align: right; } th { font-weight: 600; color: #444; }
td.long { min-width: 6ch; max-width: 22rem; overflow-wrap: break-word; } td:first-child { white-space: nowrap; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(460px, 100%), 1fr)); gap: 1.2rem 1.6rem; }
figure { margin: 0; break-inside: avoid; } figure h3 { font-size: .95rem; margin: 0 0 .2rem; }
figure svg { width: 100%; height: auto; display: block; } figcaption { max-width: 60ch; margin-top: .3rem; }
svg text { font-family: system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; }
pre { background: #f6f6f6; padding: .6rem .8rem; overflow-x: auto; font-size: .8rem; white-space: pre-wrap; }
details { margin: .4rem 0; } summary { cursor: pointer; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } table, figcaption, .about { font-size: 7.5pt; }
  .scroll { overflow: visible; } h2 { break-after: avoid; }
  .figures { grid-template-columns: 1fr 1fr; } details { display: none; } }
";

/// A headline and what stands below it.
pub struct Section {
    pub title: String,
    /// HTML above the figures.
    pub text: String,
    pub figures: Vec<Figure>,
}

/// The whole page. `left_out`: what is not in it and why.
pub fn page(runs: &[Run], sections: &[Section], left_out: &[String], date: &str) -> String {
    let title = match runs {
        [run] => {
            format!("{} on {} rank{}", run.text("model"), run.ranks, if run.ranks == 1.0 { "" } else { "s" })
        }
        [] => "predictions".into(),
        _ => format!("{} runs", runs.len()),
    };
    let title = escape(&title);
    let mut html = format!(
        "{MARK}\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>dltrain: {title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <p class=\"about\">dltrain {} report, {date}</p>\n",
        env!("CARGO_PKG_VERSION"),
    );
    let running = runs.iter().filter(|run| run.is_running());
    let running = running.map(|run| {
        format!(
            "{}: is still being written, or its job was killed; here is what there was ({} steps)",
            run.name,
            run.step.len()
        )
    });
    for text in left_out.iter().cloned().chain(running) {
        html += &format!("<p class=\"warn\">{}</p>\n", escape(&text));
    }
    if !runs.is_empty() {
        html += &table_of(runs);
    }
    if runs.len() > 1 {
        html += &differences(runs);
    }
    for section in sections.iter().filter(|section| !(section.figures.is_empty() && section.text.is_empty()))
    {
        html += &format!("<h2>{}</h2>\n{}<div class=\"figures\">\n", escape(&section.title), section.text);
        for figure in &section.figures {
            html += &format!(
                "<figure><h3>{}</h3>{}<figcaption>{}</figcaption></figure>\n",
                escape(&figure.title),
                figure.svg,
                escape(&figure.caption)
            );
        }
        html += "</div>\n";
    }
    html += if runs.is_empty() { "" } else { "<h2>To repeat a run</h2>\n" };
    for run in runs {
        html += &format!(
            "<details><summary>{}</summary><pre>{}</pre><pre>{}</pre></details>\n",
            escape(&run.name),
            escape(run.text("command")),
            escape(run.text("run_file"))
        );
    }
    html + "</body></html>\n"
}

fn table_of(runs: &[Run]) -> String {
    let rate = format!("{}/s", unit_of(runs));
    let head = [
        "run",
        "model",
        "ranks",
        "batch a rank",
        "steps",
        "first epoch",
        "later ones",
        &rate,
        "± sd of steps",
        "training loss",
        "test metric",
        "peak memory",
        "status",
    ];
    let rows = runs.iter().map(|run| {
        let memory = run.record.number("peak_memory").filter(|&bytes| bytes > 0.0);
        let metric = run.test().last().map(|row| row.3).filter(|value| value.is_finite());
        let rate = run.images_per_second();
        let [first, later] = run.epoch_seconds().map(|time| time.map_or("–".into(), seconds));
        let number = |value: f64, decimals: usize| {
            if value.is_finite() { format!("{value:.decimals$}") } else { "–".into() }
        };
        vec![
            run.name.clone(),
            run.text("model").to_string(),
            number(run.ranks, 0),
            number(run.batch, 0),
            run.step.len().to_string(),
            first,
            later,
            speed(rate),
            run.images_per_second_deviation().map_or("–".into(), speed),
            number(run.training_loss().unwrap_or(f64::NAN), 4),
            metric.map_or("–".into(), |value| match run.shows_a_share() {
                true => format!("{} {:.2} %", run.metric, 100.0 * value),
                false => format!("{} {value:.4}", run.metric),
            }),
            memory.map_or("–".into(), |bytes| format!("{:.0} MB", bytes / 1e6)),
            run.record.status.clone(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    // A column that no run has something for is left out.
    let kept: Vec<usize> = (0..head.len()).filter(|&at| rows.iter().any(|row| row[at] != "–")).collect();
    let of = |row: &[String]| kept.iter().map(|&at| row[at].clone()).collect::<Vec<_>>();
    let texts = ["run", "model", "status"];
    let numbers: Vec<usize> = (0..kept.len()).filter(|&at| !texts.contains(&head[kept[at]])).collect();
    let head = of(&head.map(String::from));
    format!("<h2>Runs</h2>\n{}", table(&head, rows.iter().map(|row| of(row)), &numbers))
}

fn differences(runs: &[Run]) -> String {
    let differences = compare::differences(runs);
    if differences.is_empty() {
        return "<p class=\"note\">All settings are the same.</p>\n".into();
    }
    let head: Vec<String> =
        std::iter::once("run".to_string()).chain(differences.iter().map(|(name, _)| name.clone())).collect();
    let rows = runs.iter().enumerate().map(|(at, run)| {
        let values = differences.iter().map(|(_, values)| values[at].clone());
        std::iter::once(run.name.clone()).chain(values).collect::<Vec<_>>()
    });
    format!("<h2>Settings that differ</h2>\n{}", table(&head, rows, &[]))
}

fn table(head: &[String], rows: impl Iterator<Item = Vec<String>>, numbers: &[usize]) -> String {
    let class = |at: usize| if numbers.contains(&at) { " class=\"number\"" } else { " class=\"long\"" };
    let cells = |tag: &str, cells: &[String]| -> String {
        let cell = |(at, text): (usize, &String)| format!("<{tag}{}>{}</{tag}>", class(at), escape(text));
        cells.iter().enumerate().map(cell).collect()
    };
    let body: String = rows.map(|row| format!("<tr>{}</tr>\n", cells("td", &row))).collect();
    format!(
        "<div class=\"scroll\"><table><thead><tr>{}</tr></thead><tbody>\n{body}</tbody></table></div>\n",
        cells("th", head)
    )
}

fn seconds(time: f64) -> String {
    format!("{} s", speed(time))
}

/// Three digits, or all that stand before the point.
fn speed(rate: f64) -> String {
    match rate {
        rate if !rate.is_finite() => "–".into(),
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate if rate < 100.0 => format!("{rate:.1}"),
        rate => number(rate, rate),
    }
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
