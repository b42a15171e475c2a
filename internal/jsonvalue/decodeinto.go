package jsonvalue

import jsonv2 "github.com/go-json-experiment/json"

// DecodeInto decodes usual JSON into a zero value as encoding/json's Unmarshal does, in about half of its time.
// After an error the caller decodes the text by encoding/json, into another zero value: DecodeInto refuses
// more, such as a member that the type does not have, also one whose name differs from a field's only in
// upper and lower case.
func DecodeInto(data []byte, zero any) error {
	return jsonv2.Unmarshal(data, zero, jsonv2.RejectUnknownMembers(true))
}
