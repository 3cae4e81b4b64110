//! The page of the admin port, at `/`: static files that are the same in every copy of this program, and that everybody
//! may read. What the page shows comes from the API, by the API's authentication.
//!
//! `page/vendor` has uPlot 1.6.32 as the npm registry has it (`dist/uPlot.iife.min.js`, `dist/uPlot.min.css`, `LICENSE`).

use std::sync::LazyLock;

use axum::Router;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use xxhash_rust::xxh3::xxh3_64;

/// What the page may load and do: only its own files, nothing inline, in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// A file: where it is served, its type and its content.
type File = (&'static str, &'static str, &'static [u8]);

macro_rules! files {
    ($($name:literal $kind:ident),* $(,)?) => {
        [$((concat!("/page/", $name), $kind, include_bytes!(concat!("page/", $name)).as_slice())),*]
    };
}

const INDEX: File = ("/", HTML, include_bytes!("page/index.html"));
const FILES: [File; 23] = files![
    "page.css" STYLE,
    "icon.svg" ICON,
    "main.mjs" SCRIPT,
    "api.mjs" SCRIPT,
    "sse.mjs" SCRIPT,
    "colors.mjs" SCRIPT,
    "format.mjs" SCRIPT,
    "rates.mjs" SCRIPT,
    "sort.mjs" SCRIPT,
    "dom.mjs" SCRIPT,
    "table.mjs" SCRIPT,
    "chart.mjs" SCRIPT,
    "grid.mjs" SCRIPT,
    "heat.mjs" SCRIPT,
    "overview.mjs" SCRIPT,
    "keyspace.mjs" SCRIPT,
    "views.mjs" SCRIPT,
    "moves.mjs" SCRIPT,
    "words.mjs" SCRIPT,
    "dialogs.mjs" SCRIPT,
    "vendor/uPlot.iife.min.js" SCRIPT,
    "vendor/uPlot.min.css" STYLE,
    "vendor/LICENSE" TEXT,
];
const ICON: &str = "image/svg+xml";

/// The tags by which a browser asks whether its copy of a file is still the present one.
static TAGS: LazyLock<Vec<String>> =
    LazyLock::new(|| all().map(|(_, _, content)| format!("\"{:016x}\"", xxh3_64(content))).collect());

fn all() -> impl Iterator<Item = File> {
    std::iter::once(INDEX).chain(FILES)
}

/// Whether a path is one of a file of the page.
#[must_use]
pub fn is_shell(path: &str) -> bool {
    all().any(|(known, ..)| known == path)
}

pub fn routes() -> Router {
    all().zip(TAGS.iter()).fold(Router::new(), |routes, ((path, kind, content), tag)| {
        let answer = move |headers: HeaderMap| std::future::ready(file(kind, content, tag, &headers));
        routes.route(path, get(answer))
    })
}

fn file(kind: &'static str, content: &'static [u8], tag: &'static str, headers: &HeaderMap) -> Response {
    let common: [(HeaderName, &str); 8] = [
        (header::ETAG, tag),
        // Files name each other, so a browser asks for each whether it is still the same.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    if known.flat_map(|tags| tags.split(',')).any(|known| known.trim().trim_start_matches("W/") == tag) {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    (common, [(header::CONTENT_TYPE, kind)], content).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(path: &str, tag: Option<&str>) -> Response {
        let mut request = Request::get(path);
        if let Some(tag) = tag {
            request = request.header(header::IF_NONE_MATCH, tag);
        }
        routes().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn every_file_has_its_headers_and_is_sent_once() {
        for (path, kind, content) in all() {
            assert!(is_shell(path) && !content.is_empty(), "{path}");
            let answer = ask(path, None).await;
            let said = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
            assert_eq!((answer.status(), said("content-type").as_str()), (StatusCode::OK, kind), "{path}");
            assert_eq!(said("x-frame-options"), "DENY");
            assert_eq!(said("x-content-type-options"), "nosniff");
            let policy = said("content-security-policy");
            assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
            let again = ask(path, Some(&format!("\"other\", {}", said("etag")))).await;
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
        }
        for path in ["/page", "/page/", "/page/nothing.mjs", "/page/../admin.rs"] {
            assert!(!is_shell(path), "{path}");
        }
    }

    #[test]
    fn the_page_has_nothing_inline_and_names_only_files_that_there_are() {
        let index = std::str::from_utf8(INDEX.2).unwrap();
        for forbidden in ["<style", "style=", "onclick", "onload", "javascript:", "http://", "https://"] {
            assert!(!index.contains(forbidden), "index.html has {forbidden}");
        }
        assert_eq!(
            index.matches("<script").count(),
            index.matches("<script src=").count() + index.matches("<script type=\"module\" src=").count()
        );
        for named in index.split("\"/page/").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(is_shell(&format!("/page/{named}")), "index.html names {named}");
        }
        for (path, _, content) in FILES.iter().filter(|(path, ..)| path.ends_with(".mjs")) {
            let text = std::str::from_utf8(content).unwrap();
            assert!(text.lines().count() <= 400, "{path} has more than 400 lines");
            for named in text.split(" from \"./").skip(1).filter_map(|rest| rest.split('"').next()) {
                assert!(is_shell(&format!("/page/{named}")), "{path} names {named}");
            }
            // What clients wrote is put in as text, never as markup.
            for forbidden in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"]
            {
                assert!(!text.contains(forbidden), "{path} has {forbidden}");
            }
        }
    }

    #[test]
    fn what_is_vendored_is_as_the_registry_has_it() {
        let of = |name: &str| {
            let found = FILES.iter().find(|(path, ..)| path.ends_with(name));
            xxh3_64(found.unwrap().2)
        };
        assert_eq!([of("uPlot.iife.min.js"), of("uPlot.min.css")], UPLOT);
    }

    /// Hashes of the files of uPlot 1.6.32.
    const UPLOT: [u64; 2] = [1_294_934_805_374_265_239, 3_684_392_545_880_000_932];
}
