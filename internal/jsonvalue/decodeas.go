package jsonvalue

import (
	"encoding/json"

	jsonv2 "github.com/go-json-experiment/json"
)

// DecodeAs decodes JSON as encoding/json's Unmarshal does: after a member of a wrong type it goes on, and returns the
// rest with the error. But a member's name must have the spelling of its field's tag, also in upper and lower case.
//
// A front decodes several documents for each request. So DecodeAs reads usual texts by encoding/json/v2, which takes
// 40 % of the time and belongs to Go from 1.27 on (decision 145). It refuses wrong types, repeated names and invalid
// UTF-8; such texts are then read by encoding/json.
func DecodeAs[T any](data []byte) (v T, err error) {
	if jsonv2.Unmarshal(data, &v) == nil {
		return v, nil
	}
	var again T // v may have some members
	err = json.Unmarshal(data, &again)
	return again, err
}
