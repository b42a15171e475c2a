package operator

import (
	"testing"
	"time"

	"atoll.dev/api/platform"
)

func TestWorkWhyOmitsMissingStages(t *testing.T) {
	at := func(ms int) *time.Time { v := time.UnixMilli(int64(ms)); return &v }
	s := deliveryStages(platform.Work{ID: "1", Generation: 2, Delivery: &platform.Delivery{AcceptedAt: at(1000),
		SentAt: at(1005), Attempts: 3, LastError: "broker away"}})
	var got []string
	for _, st := range s.Stages {
		got = append(got, st.Stage+":"+st.After)
	}
	if len(got) != 4 || got[0] != "accepted:" || got[1] != "sent:5ms" || got[2] != "received:" ||
		s.Stages[3].At != nil || s.LastError != "broker away" {
		t.Errorf("stages %v, %+v", got, s)
	}
}
