// Package status computes the conditions of a resource: it judges the reports of
// adapters, and aggregates the stored ones into Reconciled, LastKnownReconciled and one
// condition for each required adapter. The contract is hyperfleet-api's; where the
// original loses or confuses reports, the comment of Judge describes the difference.
//
// All functions are pure functions of stored reports and conditions: the caller gives
// the time, and the order of reports follows from their own times. Only package clm
// imports this package.
package status
