package agent

import (
	"encoding/json"

	"atoll.dev/api/work"
	"atoll.dev/internal/secreterror"
)

// hideSecrets returns the error of a call for the status and the log, in which an error of an API server quotes no
// value of a Secret that the manifest is or has inside.
func (e effApply) hideSecrets(err error) error {
	if err == nil || !e.hasSecret() {
		return err
	}
	return secreterror.Hide(err)
}

// hasSecret reports whether the object is a Secret, or the manifest has one inside, as a work in a work has.
func (e effApply) hasSecret() bool {
	if work.IsSecret(e.key.Group, e.key.Resource) {
		return true
	}
	if !work.MayHaveSecret(e.manifest) {
		return false
	}
	var content any
	return json.Unmarshal(e.manifest, &content) == nil && work.HasSecret(content)
}

// hideSecrets returns the error of a removal as that of an apply. The removal of another object than a Secret does not
// know whether the object has a Secret inside.
func (e effRemove) hideSecrets(err error) error {
	if err == nil || !work.IsSecret(e.key.Group, e.key.Resource) {
		return err
	}
	return secreterror.Hide(err)
}

// ignoreErrorHidden replaces the text of an ignored field's expression that fails on a manifest with a Secret: jq
// quotes the value.
const ignoreErrorHidden = "an expression of the ignored fields fails on this object, which has a Secret"

// ignoreError returns the text of the error of planIgnore for the status.
func (e effApply) ignoreError(err error) string {
	if e.hasSecret() {
		return ignoreErrorHidden
	}
	return err.Error()
}
