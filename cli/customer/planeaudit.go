package customer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// planeAuditEvent is an event of audit.k8s.io/v1, as far as a command shows it. raw is its line.
type planeAuditEvent struct {
	ID           string     `json:"auditID"`
	Stage        string     `json:"stage"`
	URI          string     `json:"requestURI"`
	Verb         string     `json:"verb"`
	Time         time.Time  `json:"stageTimestamp"`
	User         planeUser  `json:"user"`
	Impersonated *planeUser `json:"impersonatedUser"`
	Object       *struct {
		Resource, Subresource, Namespace, Name string
	} `json:"objectRef"`
	Response struct{ Code int } `json:"responseStatus"`

	raw []byte
}

type planeUser struct {
	Username string `json:"username"`
}

// object returns RESOURCE/SUBRESOURCE NAMESPACE/NAME of the event, or its URI.
func (e planeAuditEvent) object() string {
	o := e.Object
	if o == nil {
		return e.URI
	}
	text := o.Resource
	if o.Subresource != "" {
		text += "/" + o.Subresource
	}
	switch {
	case o.Namespace != "" && o.Name != "":
		text += " " + o.Namespace + "/" + o.Name
	case o.Namespace+o.Name != "":
		text += " " + o.Namespace + o.Name
	}
	return text
}

// planeAuditFilter selects events. Empty members select all.
type planeAuditFilter struct {
	since    time.Time
	user     string // who sent the request, or as whom
	verbs    []string
	resource string
}

func (f planeAuditFilter) selects(e planeAuditEvent) bool {
	isUser := f.user == "" || e.User.Username == f.user || e.Impersonated != nil && e.Impersonated.Username == f.user
	isVerb := len(f.verbs) == 0 || slices.Contains(f.verbs, e.Verb)
	isResource := f.resource == "" || e.Object != nil && e.Object.Resource == f.resource
	return isUser && isVerb && isResource && !e.Time.Before(f.since)
}

// planeAuditPosition is how far a reader has come in the log of a control plane. Every read has the whole log, which
// grows at its end and loses its oldest files. The zero value, with a filter, is before the first event.
type planeAuditPosition struct {
	filter planeAuditFilter
	last   string    // id and stage of the last event that was read; "" before the first read
	at     time.Time // its time
}

// maxPlaneAudit bounds what is read of a log in bytes: more than the 60 MiB that a control plane keeps.
const maxPlaneAudit = 256 << 20

// advance reads a whole log and returns the selected events behind the position, which it moves to the end of the log.
// A last line without its end is left for the next read. When the event of the position is not in the log any more, the
// events from its time on are returned. An error leaves the position where it was.
func (p *planeAuditPosition) advance(log io.Reader) ([]planeAuditEvent, error) {
	var behind, late []planeAuditEvent // behind the event of the position; of its time and later
	var end planeAuditEvent
	isBehind := p.last == ""
	lines := bufio.NewReader(io.LimitReader(log, maxPlaneAudit))
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading the audit log of the cluster: %w", err)
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		var e planeAuditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("reading the audit log of the cluster: a line is no event: %w", err)
		}
		e.raw = line
		end = e
		switch isSelected := p.filter.selects(e); {
		case isBehind && isSelected:
			behind = append(behind, e)
		case !isBehind && e.key() == p.last:
			isBehind, late = true, nil
		case !isBehind && isSelected && !e.Time.Before(p.at):
			late = append(late, e)
		}
	}
	if !isBehind {
		behind = late
	}
	if end.ID != "" {
		p.last, p.at = end.key(), end.Time
	}
	return behind, nil
}

func (e planeAuditEvent) key() string { return strings.Join([]string{e.ID, e.Stage}, " ") }
