// Package status decides what a resource's conditions say: it judges the
// reports of adapters, and aggregates those that were kept into Reconciled,
// LastKnownReconciled and one condition for each required adapter. The
// contract is hyperfleet-api's; where it loses or confuses reports, Judge says
// what is done instead.
//
// Everything here is a pure function of what is stored: no clock but the
// caller's, no order but the reports' own. Package clm does the rest; nothing
// else imports this one.
package status
