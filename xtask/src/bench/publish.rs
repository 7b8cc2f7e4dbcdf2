//! Puts a run's table and plots into the documentation.

use std::fs;
use std::path::Path;

use super::Result;
use super::report::Report;

const BEGIN: &str = "<!-- the table begins -->";
const END: &str = "<!-- the table ends -->";

/// Replaces the table in docs/performance.md, and the plots and the JSON in docs/performance/.
pub(super) fn publish(report: &Report, workspace: &Path) -> Result<()> {
    let docs = workspace.join("docs");
    let page = docs.join("performance.md");
    let text = fs::read_to_string(&page)?;
    fs::write(&page, with_table(&text, &report.markdown())?)?;
    let folder = docs.join("performance");
    fs::create_dir_all(&folder)?;
    for (name, svg) in report.plots() {
        fs::write(folder.join(name), svg)?;
    }
    fs::write(folder.join("report.json"), format!("{:#}\n", report.json()))?;
    Ok(())
}

/// The page with `table` between its two markers.
fn with_table(page: &str, table: &str) -> Result<String> {
    let parts = page
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or("docs/performance.md has no markers of the table")?;
    Ok(format!("{before}{BEGIN}\n\n{table}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_between_the_markers_is_replaced() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = with_table(&page, "| new |\n").unwrap();
        assert_eq!(new, format!("before\n{BEGIN}\n\n| new |\n\n{END}\nafter\n"));
        assert_eq!(with_table(&new, "| new |\n").unwrap(), new);
    }

    #[test]
    fn a_page_without_markers_is_left_alone() {
        for page in ["nothing", BEGIN, END, &format!("{END}{BEGIN}")] {
            assert!(with_table(page, "").is_err(), "{page}");
        }
    }
}
