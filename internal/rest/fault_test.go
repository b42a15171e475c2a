package rest

import (
	"testing"
	"time"
)

func TestEachFaultHasOneAnswer(t *testing.T) {
	for fault, want := range map[Fault]struct {
		status     int
		retryAfter time.Duration
	}{
		FaultNotFound: {404, 0}, FaultExists: {409, 0}, FaultStale: {412, 0}, FaultGone: {410, 0}, FaultInvalid: {400, 0},
		FaultUnavailable: {503, time.Second}, FaultBusy: {503, time.Second}, FaultUnknownOutcome: {503, time.Second},
		FaultTimeout: {504, time.Second}, FaultFull: {507, 10 * time.Second}, 0: {500, 0},
	} {
		e := fault.Errorf("code", "word %d", 1)
		if e.Status != want.status || e.RetryAfter != want.retryAfter || e.Code != "code" || e.Reason != "word 1" {
			t.Errorf("fault %d: %+v, want %+v", fault, e, want)
		}
	}
	for fault := FaultNotFound; fault <= FaultUnknownOutcome; fault++ {
		if _, there := faultStatuses[fault]; !there {
			t.Errorf("fault %d is not in the table", fault)
		}
	}
}
