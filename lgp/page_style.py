"""The style sheet of the report page: readable at 360 px, light and dark, printable."""

STYLE = """
:root{--ink:#1b1f24;--soft:#5a636e;--line:#d9dde2;--paper:#fff;--wash:#f5f6f8;--link:#0b5cad}
@media (prefers-color-scheme:dark){:root{--ink:#e7eaee;--soft:#a4adb8;--line:#39424d;
--paper:#14181d;--wash:#1c2229;--link:#7fb8f0}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
header,main{max-width:70rem;margin:0 auto;padding:0 1rem}
header{padding-top:1.5rem}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .5rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem;padding-top:.6rem;border-top:1px solid var(--line)}
nav a{display:inline-block;margin:0 1rem .2rem 0}
a{color:var(--link)}
ul{padding-left:1.1rem;margin:.4rem 0}
li{margin:.25rem 0;overflow-wrap:anywhere}
h2 .here{font-weight:400;text-decoration:none;opacity:.4}
h3{font-size:.95rem;font-weight:600;margin:.3rem 0 0;overflow-wrap:anywhere}
figure{margin:1.2rem 0}
figcaption{color:var(--soft);font-size:.95rem}
.key{display:inline-block;margin:0 .9rem 0 0;color:var(--ink)}
.key i{font-style:normal}
.grid{display:grid;gap:.6rem 1rem;
grid-template-columns:repeat(auto-fill,minmax(min(100%,19rem),1fr))}
.panel{max-width:27rem}
.panel svg{display:block;width:100%;height:auto;color:var(--ink)}
.scroll{overflow-x:auto;margin:1rem 0;border:1px solid var(--line);border-radius:6px}
table{border-collapse:collapse;font-size:.94rem;font-variant-numeric:tabular-nums;width:100%}
caption{text-align:left;color:var(--soft);padding:.5rem .6rem;position:sticky;left:0}
th,td{padding:.28rem .6rem;text-align:left;vertical-align:top;max-width:16rem;
border-top:1px solid var(--line)}
th{background:var(--wash);font-weight:600}
td.n,th.n{text-align:right;white-space:nowrap}
td{min-width:3.2rem}
summary{cursor:pointer;color:var(--link);margin:.6rem 0}
@media print{nav{display:none}.scroll{overflow:visible}th,td{white-space:normal}}
"""
