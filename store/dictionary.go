package store

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
)

// dictionary has frequent words of the JSON of conditions and reports. Texts of the form packedByDictionary need these
// very bytes, so the dictionary never changes: another dictionary is another form.
const dictionary = `"deletion_repeated":"ended_with_child":true,"Unknown","status":"False",` +
	`"deleted_by":"deleted_time":""metadata":{"job_name":"job_namespace":"attempt":1,` +
	`"duration":"started_time":"completed_time":"received_time":"recent":["{"labels":{"spec":{"references":{"` +
	`owner":{"id":"kind":"ClusterNodePool","href":"/api/hyperfleet/v1/clusters//nodepools/"tenancy":{},` +
	`"created_by":"system@hyperfleet.local","updated_by":"system@hyperfleet.local",` +
	`"updated_time":"ReconciledWaitingForChildren","message":"AdapterReportedNotAvailable",` +
	`"message":"One or more required adapters report Available=False",` +
	`"observed_generation":AdaptersNotAtSameGeneration","message":"AdaptersMissingReports",` +
	`"message":"Required adapters have not yet reported status","observed_generation":1,` +
	`"created_time":"ReconciledMissingAdapters","message":"Required adapters not reporting Finalized=True: ` +
	`[Available=True: []. Currently reporting: []",,"status":{"awaiting":[{"adapter":"reported":"since":"Z"}]` +
	`,"conditions":[{"conditions":[{"type":"Reconciled","status":"True","reason":"ReconciledAll",` +
	`"message":"All required adapters reported Available=True or Finalized=True at the current generation",` +
	`"observed_generation":1,"created_time":"Z"},{"type":"LastKnownReconciled","status":"True",` +
	`"reason":"AllAdaptersReconciled","message":"All required adapters report Available=True for the tracked ` +
	`generation","observed_generation":1,"created_time":"Z"},{"type":"ValidationSuccessful","status":"True",` +
	`"reason":"message":"observed_generation":1,"created_time":"2026-Z","last_updated_time":"2026-Z",` +
	`"last_transition_time":"2026-,"reports":[{"adapter":"observed_generation":1,` +
	`"conditions":[{"type":"Finalized","status":"True"{"type":"Available","status":"True",` +
	`"reason":"message":"","last_transition_time":"2026-Z"},{"type":"Applied","status":"True",` +
	`"reason":"Applied","message":"","last_transition_time":"2026-Z"},{"type":"Health","status":"True",` +
	`"reason":"Healthy","message":"no errors","last_transition_time":"2026-Z"}],` +
	`"data":{"created_time":"2026-11-22T00:00:00.000000Z","last_report_time":"2026-Z"}]}`

// s2Dictionary is the dictionary in the form of S2, which compresses a block within a few microseconds, also of a short
// text: deflate needs longer to make its table of codes.
var s2Dictionary = sync.OnceValue(func() *s2.Dict { return s2.MakeDict([]byte(dictionary), nil) })

// maxPacked is the largest length of a text that unpackByDictionary accepts. It bounds what a damaged
// length can allocate.
const maxPacked = 256 << 20

var packBuffers = sync.Pool{New: func() any { return new([]byte) }}

// packByDictionary returns the form packedByDictionary of a text.
func packByDictionary(text []byte) []byte {
	buffer := packBuffers.Get().(*[]byte)
	defer packBuffers.Put(buffer)
	if n := s2.MaxEncodedLen(len(text)); cap(*buffer) < n && n <= 64<<10 {
		*buffer = make([]byte, n)
	}
	block := s2Dictionary().Encode((*buffer)[:cap(*buffer)], text)
	return append(append(make([]byte, 0, len(block)+1), packedByDictionary), block...)
}

// unpackByDictionary appends the text of a block to b.
func unpackByDictionary(b, block []byte) ([]byte, error) {
	n, err := s2.DecodedLen(block)
	if err != nil || n > maxPacked {
		return b, fmt.Errorf("unpacking: %w", s2.ErrCorrupt)
	}
	begin := len(b)
	if cap(b)-begin < n {
		b = append(make([]byte, 0, begin+n), b...)
	}
	if _, err := s2Dictionary().Decode(b[begin:begin+n], block); err != nil {
		return b, fmt.Errorf("unpacking: %w", err)
	}
	return b[:begin+n], nil
}
