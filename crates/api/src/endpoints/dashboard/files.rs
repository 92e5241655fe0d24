//! The dashboard's files, included in the binary. Browsers revalidate each by its `ETag` on every load, so modules of
//! two versions never mix. All imports are static: a page that stays open during an upgrade loads nothing later.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};

const HTML: &str = "text/html; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! files {
    ($($content_type:ident $name:literal,)*) => {
        vec![$(File::new($name, $content_type, include_str!(concat!("../../dashboard/", $name)))),*]
    };
}

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    files! {
        HTML "index.html",
        SVG "icon.svg",
        JS "app.js",
        JS "lib/api.js",
        JS "lib/chart.js",
        JS "lib/details.js",
        JS "lib/dom.js",
        JS "lib/form.js",
        JS "lib/format.js",
        JS "lib/keys.js",
        JS "lib/live.js",
        JS "lib/messages.js",
        JS "lib/pager.js",
        JS "lib/queue.js",
        JS "lib/replications.js",
        JS "lib/router.js",
        JS "lib/row.js",
        JS "lib/session.js",
        JS "views/create.js",
        JS "views/login.js",
        JS "views/nodes.js",
        JS "views/overview.js",
        JS "views/queue_job.js",
        JS "views/queue_type.js",
        JS "views/queue_types.js",
        JS "views/remotes.js",
        JS "views/replication.js",
        JS "views/replications.js",
        JS "views/rules.js",
        JS "views/schedules.js",
        CSS "css/base.css",
        CSS "css/controls.css",
        CSS "css/bar.css",
        CSS "css/page.css",
        CSS "css/overview.css",
        CSS "css/chart.css",
        CSS "css/table.css",
        CSS "css/list.css",
        CSS "css/replication.css",
        CSS "css/queue.css",
        CSS "css/form.css",
        CSS "css/overlay.css",
        CSS "css/print.css",
    }
});

pub(super) struct File {
    name: &'static str,
    pub(super) content_type: &'static str,
    pub(super) text: &'static str,
    pub(super) etag: String,
}

impl File {
    fn new(name: &'static str, content_type: &'static str, text: &'static str) -> Self {
        let hash = wire::hex(&digest(&SHA256, text.as_bytes()).as_ref()[..8]);
        Self {
            name,
            content_type,
            text,
            etag: format!("\"{hash}\""),
        }
    }
}

pub(super) fn find(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}
