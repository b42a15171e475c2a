package digest

import (
	"strconv"

	"atoll.dev/api/work"
)

// statusDigits is the number of digits of a status hash that are compared.
const statusDigits = 16

// ShortStatus shortens a status hash to the digits that WorkState carries.
func ShortStatus(hash string) string { return hash[:min(len(hash), statusDigits)] }

// ItemsOf returns the items of works, whose values must be equal on server and agent.
func ItemsOf(states []work.WorkState) []Item {
	items := make([]Item, len(states))
	for i, w := range states {
		value := strconv.FormatInt(w.Version, 10) + " " + w.Life + " " + w.Status
		if w.Deleting {
			value = strconv.FormatInt(w.Version, 10) + " deleting"
		}
		items[i] = Item{string(w.ID), value}
	}
	return items
}

// maxMessage bounds a message of works, in bytes, well below the smallest broker limit (AWS IoT
// Core: 128 KB).
const maxMessage = 96 << 10

// SplitWorks distributes the works of the given buckets to messages. All works of a bucket
// are in the same message. A message lists its empty buckets, too.
func SplitWorks(states []work.WorkState, bits int, buckets []int) []work.BucketWorks {
	in := make(map[int][]work.WorkState, len(buckets))
	for _, b := range buckets {
		in[b] = nil
	}
	for _, w := range states {
		b := Bucket(string(w.ID), bits)
		if _, wanted := in[b]; wanted {
			in[b] = append(in[b], w)
		}
	}
	const overhead = len(`{"id":"","v":12345678,"d":true,"l":"01234567","s":"0123456789abcdef"},`)
	var messages []work.BucketWorks
	message, size := work.BucketWorks{Bits: bits}, 0
	for _, b := range buckets {
		n := 8
		for _, w := range in[b] {
			n += len(w.ID) + overhead
		}
		if len(message.Buckets) > 0 && size+n > maxMessage {
			messages = append(messages, message)
			message, size = work.BucketWorks{Bits: bits}, 0
		}
		message.Buckets = append(message.Buckets, b)
		message.Works = append(message.Works, in[b]...)
		size += n
	}
	if len(message.Buckets) > 0 {
		messages = append(messages, message)
	}
	return messages
}
