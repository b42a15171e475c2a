package status

import (
	"encoding/base64"
	"strconv"

	"atoll.dev/cluster"
	"atoll.dev/internal/jsonscan"
)

// This file reads and writes the stored JSON of conditions and reports without encoding/json, which would
// take most of the time of a report.

// AppendConditions appends a resource's conditions as a JSON array.
func AppendConditions(b []byte, conditions []Condition) []byte {
	b = append(b, '[')
	for i, c := range conditions {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendBeginning(b, Reported{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
		b = strconv.AppendInt(append(b, `,"observed_generation":`...), int64(c.ObservedGeneration), 10)
		b = jsonscan.AppendTime(append(b, `,"created_time":`...), c.CreatedTime)
		b = jsonscan.AppendTime(append(b, `,"last_updated_time":`...), c.LastUpdatedTime)
		b = jsonscan.AppendTime(append(b, `,"last_transition_time":`...), c.LastTransitionTime)
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendBeginning appends the beginning of a condition's JSON, to its message; the caller appends times and the brace.
func appendBeginning(b []byte, c Reported) []byte {
	b = jsonscan.AppendString(append(b, `{"type":`...), c.Type)
	b = jsonscan.AppendString(append(b, `,"status":`...), string(c.Status))
	if !c.Reason.IsZero() {
		b = jsonscan.AppendString(append(b, `,"reason":`...), c.Reason.String())
	}
	if !c.Message.IsZero() {
		b = jsonscan.AppendString(append(b, `,"message":`...), c.Message.String())
	}
	return b
}

// ScanConditions reads what AppendConditions wrote.
func ScanConditions(s *jsonscan.Scanner) []Condition {
	conditions := []Condition{}
	s.Array(func() {
		var c Condition
		s.Object(func(key string) {
			switch key {
			case "type":
				c.Type = s.String()
			case "status":
				c.Status = Value(s.String())
			case "reason":
				c.Reason = scanText(s)
			case "message":
				c.Message = scanText(s)
			case "observed_generation":
				c.ObservedGeneration = int32(s.Int())
			case "created_time":
				c.CreatedTime = s.Time()
			case "last_updated_time":
				c.LastUpdatedTime = s.Time()
			case "last_transition_time":
				c.LastTransitionTime = s.Time()
			default:
				s.Skip()
			}
		})
		conditions = append(conditions, c)
	})
	return conditions
}

// scanText reads a text that AppendConditions or Append wrote because it was given.
func scanText(s *jsonscan.Scanner) Text {
	if s.Null() {
		return Text{}
	}
	return Given(s.String())
}

// Append appends the stored form of a report.
func (r Report) Append(b []byte) []byte {
	b = jsonscan.AppendString(append(b, `{"adapter":`...), string(r.Adapter))
	b = strconv.AppendInt(append(b, `,"observed_generation":`...), int64(r.Generation), 10)
	b = append(b, `,"conditions":[`...)
	for i, c := range r.Conditions {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendBeginning(b, c)
		b = jsonscan.AppendTime(append(b, `,"last_transition_time":`...), c.LastTransitionTime)
		b = append(b, '}')
	}
	b = append(b, ']')
	if len(r.Data) > 0 {
		b = append(append(b, `,"data":`...), r.Data...)
	}
	if len(r.Metadata) > 0 {
		b = append(append(b, `,"metadata":`...), r.Metadata...)
	}
	b = jsonscan.AppendTime(append(b, `,"created_time":`...), r.CreatedAt)
	b = jsonscan.AppendTime(append(b, `,"last_report_time":`...), r.ObservedAt)
	if r.ReceivedAt != nil {
		b = jsonscan.AppendTime(append(b, `,"received_time":`...), *r.ReceivedAt)
	}
	if len(r.Recent) > 0 {
		b = append(b, `,"recent":[`...)
		for i, k := range r.Recent {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, '"')
			b = base64.StdEncoding.AppendEncode(b, k)
			b = append(b, '"')
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// ScanReport reads what Append wrote. Data and Metadata share memory with what the Scanner reads.
func ScanReport(s *jsonscan.Scanner) (r Report) {
	s.Object(func(key string) {
		switch key {
		case "adapter":
			r.Adapter = cluster.Adapter(s.String())
		case "observed_generation":
			r.Generation = int32(s.Int())
		case "conditions":
			r.Conditions = scanReported(s)
		case "data":
			r.Data = s.Raw()
		case "metadata":
			r.Metadata = s.Raw()
		case "created_time":
			r.CreatedAt = s.Time()
		case "last_report_time":
			r.ObservedAt = s.Time()
		case "received_time":
			if t := s.Time(); !t.IsZero() {
				r.ReceivedAt = &t
			}
		case "recent":
			s.Array(func() {
				k, _ := base64.StdEncoding.DecodeString(s.String())
				r.Recent = append(r.Recent, k)
			})
		default:
			s.Skip()
		}
	})
	return r
}

func scanReported(s *jsonscan.Scanner) []Reported {
	reported := []Reported{}
	s.Array(func() {
		var c Reported
		s.Object(func(key string) {
			switch key {
			case "type":
				c.Type = s.String()
			case "status":
				c.Status = Value(s.String())
			case "reason":
				c.Reason = scanText(s)
			case "message":
				c.Message = scanText(s)
			case "last_transition_time":
				c.LastTransitionTime = s.Time()
			default:
				s.Skip()
			}
		})
		reported = append(reported, c)
	})
	return reported
}

// Repeats reports whether two reports are equal in all stored members but Recent.
func (r Report) Repeats(other Report) bool {
	return r.same(other) && r.CreatedAt.Equal(other.CreatedAt) && sameTime(r, other) &&
		SameButTimes([]Report{r}, []Report{other}, nil, nil)
}

func sameTime(a, b Report) bool {
	return a.ReceivedAt == b.ReceivedAt || a.ReceivedAt != nil && b.ReceivedAt != nil &&
		a.ReceivedAt.Equal(*b.ReceivedAt)
}

// AppendShown reads a report that Append wrote, and appends it as answers show it: without Recent, and with data even
// when there are none. It decodes nothing, because decoding would take most of the time of a GET.
func AppendShown(b []byte, s *jsonscan.Scanner) []byte {
	b = append(b, '{')
	begin, hasData := len(b), false
	s.Object(func(key string) {
		if key == "recent" {
			s.Skip()
			return
		}
		hasData = hasData || key == "data"
		if len(b) > begin {
			b = append(b, ',')
		}
		b = append(append(jsonscan.AppendString(b, key), ':'), s.Raw()...)
	})
	if !hasData {
		b = append(b, `,"data":{}`...)
	}
	return append(b, '}')
}
