"""Reports, pages, live views, traces, SQL, Python and MCP, dead letters, notices: all that people read and ask."""
