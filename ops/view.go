package ops

import "time"

// ARMView is an operation as Azure Resource Manager reads it from the URL of Azure-AsyncOperation.
type ARMView struct {
	ID              string     `json:"id"`
	Name            string     `json:"name"`
	Status          string     `json:"status"`
	StartTime       time.Time  `json:"startTime"`
	EndTime         *time.Time `json:"endTime,omitempty"`
	PercentComplete int        `json:"percentComplete"`
	Error           *Error     `json:"error,omitempty"`
}

// ViewAsARM returns the operation as Azure Resource Manager reads it, with id as its resource id and
// working as the word for a running operation, such as Provisioning.
func (s State) ViewAsARM(id, working string) ARMView {
	v := ARMView{ID: id, Name: s.ID, Status: string(s.Status), StartTime: s.StartedAt.UTC(),
		PercentComplete: s.Percent, Error: s.Error}
	if s.Status == Running {
		v.Status = working
	}
	if s.Status.IsTerminal() {
		ended := s.EndedAt.UTC()
		v.EndTime = &ended
	}
	return v
}

// Condition is one condition of an operation, in the form of Kubernetes.
type Condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	Reason             string    `json:"reason"`
	Message            string    `json:"message,omitempty"`
	LastTransitionTime time.Time `json:"lastTransitionTime"`
}

// Conditions returns the operation as conditions. Progressing is True while the operation is active;
// Succeeded is Unknown until it has ended.
func (s State) Conditions() []Condition {
	progressing := Condition{Type: "Progressing", Status: "True", Reason: string(s.Status), Message: s.Failure,
		LastTransitionTime: s.ChangedAt.UTC()}
	if s.Phase != "" && !s.Status.IsTerminal() {
		progressing.Reason = s.Phase
	}
	succeeded := Condition{Type: "Succeeded", Status: "Unknown", Reason: string(s.Status),
		LastTransitionTime: s.ChangedAt.UTC()}
	if s.Status.IsTerminal() {
		progressing.Status, succeeded.Status = "False", "False"
		if s.Status == Succeeded {
			succeeded.Status = "True"
		}
	}
	if s.Error != nil {
		succeeded.Reason, succeeded.Message = s.Error.Code, s.Error.Message
	}
	return []Condition{progressing, succeeded}
}
