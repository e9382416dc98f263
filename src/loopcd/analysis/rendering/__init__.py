"""Results as files: tables as Markdown, CSV and JSON, pictures as SVG and PNG, and one page with all of them."""
