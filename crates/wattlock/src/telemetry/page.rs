//! Pages for people: the style sheet that all of Wattlock's pages have, and the document around a page's body.
//!
//! A page is one file with nothing to fetch and no script; its policy (CSP) forbids both, so that text which somebody
//! else wrote can do nothing even if a page forgot to escape it.

use super::text::html;

/// The style sheet: light and dark, wide screens and telephones.
pub const STYLE: &str = include_str!("page.css");

/// Ends the part of [`STYLE`] that a picture alone needs.
const BODY: &str = "/* page */";

/// What a page may do: nothing but look as its style sheet says.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// A page around a body, which is HTML. `again`: seconds after which a browser asks for it again.
pub fn document(title: &str, again: Option<u32>, body: &str) -> String {
    let again = again
        .map_or_else(String::new, |seconds| format!("<meta http-equiv=\"refresh\" content=\"{seconds}\">"));
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><meta http-equiv=\"Content-Security-Policy\" \
         content=\"{POLICY}\">{again}<link rel=\"icon\" href=\"data:,\"><title>{}</title><style>{}</style></head><body>\
         <p class=\"brand\"><i></i>Wattlock</p>{body}</body></html>\n",
        html(title),
        plain(STYLE)
    )
}

/// The style sheet of a picture that stands alone.
pub fn picture_style() -> String {
    plain(STYLE.split(BODY).next().unwrap_or_default())
}

/// A style sheet as one line without remarks.
fn plain(style: &str) -> String {
    let (mut out, mut rest) = (String::new(), style);
    while let Some((before, remark)) = rest.split_once("/*") {
        out.push_str(before);
        rest = remark.split_once("*/").map_or("", |(_, after)| after);
    }
    out.push_str(rest);
    out.lines().map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_one_style_and_a_policy_and_fetches_nothing() {
        let page = document("a </title><b>", Some(5), "<h1>x</h1>");
        assert_eq!(page.matches("<style>").count(), 1);
        assert!(page.contains("<title>a &lt;/title&gt;&lt;b&gt;</title>"), "{page}");
        assert!(page.contains("default-src 'none'") && page.contains("content=\"5\""), "{page}");
        assert!(!document("a", None, "").contains("refresh"));
        for forbidden in ["src=", "url(", "<script", "@import", "http:", "https:", "/*"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn every_colour_has_a_name_and_dark_has_each_that_light_has() {
        let names = |part: &str| -> Vec<String> {
            let names = part.split("--").skip(1).filter_map(|rest| rest.split_once(":#"));
            names.map(|(name, _)| name.to_owned()).collect()
        };
        let (light, rest) = STYLE.split_once("@media(prefers-color-scheme:dark)").unwrap();
        let (dark, rest) = rest.split_once("}}").unwrap();
        assert_eq!(names(light), names(dark));
        assert!(names(light).len() > 20 && !rest.contains('#'), "a colour without a name");
        for used in STYLE.split("var(--").skip(1).filter_map(|rest| rest.split(')').next()) {
            assert!(used == "n" || names(light).contains(&used.to_owned()), "{used}");
        }
    }

    #[test]
    fn a_picture_has_the_colours_and_no_page() {
        let style = picture_style();
        assert!(style.contains("--m5:") && style.contains("svg text"), "{style}");
        assert!(!style.contains("body{") && !style.contains(".tiles"), "{style}");
    }
}
