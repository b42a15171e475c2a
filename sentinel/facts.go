package sentinel

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"atoll.dev/internal/jsonscan"
)

// Facts are the values of a resource that rules read. Rules.Facts decodes them.
type Facts struct {
	resource   map[string]any
	conditions map[string]any
	lastReport time.Time // of the last report; of the last change when there was no report
}

// Facts decodes the members of a resource's wire form that the expressions and the selector read. It accepts
// some wire forms that are not JSON, none of which the lifecycle manager stores.
func (r *Rules) Facts(wire []byte) (Facts, error) {
	if r.resource.Member("status") {
		return allFacts(wire)
	}
	f := Facts{resource: map[string]any{}, conditions: map[string]any{}}
	var created, updated time.Time
	scan := jsonscan.New(wire)
	if scan.Null() {
		return f, errNull
	}
	scan.Object(func(key string) {
		if r.resource.Member(key) {
			f.resource[key] = toInteger(scan.Value())
			return
		}
		switch key {
		case "status":
			r.scanStatus(scan, &f)
		case "created_time":
			created = scanTime(scan)
		case "updated_time":
			updated = scanTime(scan)
		default:
			scan.Skip()
		}
	})
	if err := scan.End(); err != nil {
		return f, fmt.Errorf("reading a resource: %w", err)
	}
	if f.lastReport.IsZero() {
		f.setLatestReport(cmp.Or(timeOf(f.resource["created_time"]), created))
		f.setLatestReport(cmp.Or(timeOf(f.resource["updated_time"]), updated))
	}
	return f, nil
}

// scanStatus reads from a resource's status the conditions that the expressions read, and the time of the last report.
func (r *Rules) scanStatus(scan *jsonscan.Scanner, f *Facts) {
	clear(f.conditions) // of two members status the last counts
	f.lastReport = time.Time{}
	if scan.Next() != '{' {
		scan.Skip()
		return
	}
	scan.Object(func(key string) {
		if key != "conditions" {
			scan.Skip()
			return
		}
		clear(f.conditions)
		f.lastReport = time.Time{}
		if scan.Next() != '[' {
			scan.Skip()
			return
		}
		scan.Array(func() {
			if scan.Next() != '{' {
				scan.Skip()
				return
			}
			r.addCondition(scan.Raw(), f)
		})
	})
}

// addCondition adds a condition, if the expressions read it, and the time of its report.
func (r *Rules) addCondition(text []byte, f *Facts) {
	var name string
	var typed bool
	var at time.Time
	scan := jsonscan.New(text)
	scan.Object(func(key string) {
		switch {
		case key == "type" && scan.Next() == '"':
			name, typed = scan.String(), true
		case key == "type":
			typed = false
			scan.Skip()
		case key == "last_updated_time":
			at = scanTime(scan)
		default:
			scan.Skip()
		}
	})
	if !typed {
		return
	}
	f.setLatestReport(at)
	if !r.conditions.Member(name) {
		return
	}
	c, ok := jsonscan.New(text).Value().(map[string]any)
	if ok {
		f.addCondition(name, c)
	}
}

// scanTime reads a time; anything else is the zero time.
func scanTime(scan *jsonscan.Scanner) time.Time {
	if scan.Next() != '"' {
		scan.Skip()
		return time.Time{}
	}
	return timeOf(string(scan.Text()))
}

// timeOf returns the time of a decoded JSON value; anything but a time is the zero time.
func timeOf(v any) time.Time {
	text, _ := v.(string)
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

func (f *Facts) setLatestReport(t time.Time) {
	if t.After(f.lastReport) {
		f.lastReport = t
	}
}

// addCondition adds a decoded condition.
func (f *Facts) addCondition(name string, c map[string]any) {
	if n, ok := c["observed_generation"].(float64); ok {
		c["observed_generation"] = int64(n)
	}
	f.conditions[name] = c
}

// toInteger returns a number without fraction as int64, as CEL compares it with generations.
func toInteger(v any) any {
	if n, ok := v.(float64); ok && n == float64(int64(n)) {
		return int64(n)
	}
	return v
}

var errNull = errors.New("reading a resource: it is null")

// allFacts decodes all of a resource's wire form.
func allFacts(wire []byte) (Facts, error) {
	f := Facts{conditions: map[string]any{}}
	if err := json.Unmarshal(wire, &f.resource); err != nil {
		return f, fmt.Errorf("reading a resource: %w", err)
	}
	if f.resource == nil {
		return f, errNull
	}
	for name, v := range f.resource {
		f.resource[name] = toInteger(v)
	}
	status, _ := f.resource["status"].(map[string]any)
	list, _ := status["conditions"].([]any)
	for _, item := range list {
		c, _ := item.(map[string]any)
		if name, ok := c["type"].(string); ok {
			f.addCondition(name, c)
			f.setLatestReport(timeOf(c["last_updated_time"]))
		}
	}
	if f.lastReport.IsZero() {
		f.setLatestReport(timeOf(f.resource["created_time"]))
		f.setLatestReport(timeOf(f.resource["updated_time"]))
	}
	return f, nil
}
