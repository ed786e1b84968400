// What the search finds: pages for those who work on the template come last. The other numbers are Sphinx's own.
"use strict";
var Scorer = {
  score: ([page, , , , score]) => (/^(decisions|adding|maintaining|testing|matrix|updates|changelog)/.test(page) ? score - 100 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
