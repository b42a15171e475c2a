// Package rollout carries a change of the configuration through the regions of an environment: sector after sector,
// and in each sector wave after wave, while gates read the health of each changed region.
//
// Parse reads the file of a rollout. newPlan returns its plan: the waves, the regions and management clusters of
// each, and the times. Plan.Step is the state machine: a function of the state, of one observation of the gates and
// of the time, which returns the next state and the effects. It reads no clock and no network.
//
// A driver (Driver) executes the effects: it commits the edits of a step together with the record of the rollout, and
// pushes them to the branch. The record has the whole state, so another driver continues after the first ends.
//
// The package imports gitops, which reads and renders the configuration. Package cli composes it; no service imports
// it.
package rollout
