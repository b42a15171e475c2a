package jsonvalue

import jsonv2 "github.com/go-json-experiment/json"

// DecodeInto decodes JSON into a zero value, with the result of encoding/json's Unmarshal, in about half of
// Unmarshal's time. It refuses some JSON that Unmarshal accepts, such as a member that the type does not have, or one
// whose name differs from that of the field in upper and lower case. After an error the caller decodes the text with
// encoding/json, into another zero value.
func DecodeInto(data []byte, zero any) error {
	return jsonv2.Unmarshal(data, zero, jsonv2.RejectUnknownMembers(true))
}
