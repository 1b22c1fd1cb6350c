// Google's emulator of Bigtable, which keeps everything in memory, with a log of what it was asked to change: each
// request is appended before it is answered, one at a time, and asked again when the emulator starts. So what was
// acknowledged survives the end of the process (not a power cut: nothing is synced).
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"log"
	"os"
	"sync"
	"time"

	admin "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	data "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"cloud.google.com/go/bigtable/bttest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

const (
	maxMessage = 256 << 20
	rows       = "/google.bigtable.v2.Bigtable/"
	tables     = "/google.bigtable.admin.v2.BigtableTableAdmin/"
	replaying  = "replaying"
)

// An empty request and an empty answer of each method that changes something.
var changing = map[string]func() (proto.Message, proto.Message){
	rows + "MutateRow":         func() (proto.Message, proto.Message) { return &data.MutateRowRequest{}, &data.MutateRowResponse{} },
	rows + "MutateRows":        func() (proto.Message, proto.Message) { return &data.MutateRowsRequest{}, &data.MutateRowsResponse{} },
	rows + "CheckAndMutateRow": func() (proto.Message, proto.Message) { return &data.CheckAndMutateRowRequest{}, &data.CheckAndMutateRowResponse{} },
	tables + "CreateTable":     func() (proto.Message, proto.Message) { return &admin.CreateTableRequest{}, &admin.Table{} },
	tables + "DeleteTable":     func() (proto.Message, proto.Message) { return &admin.DeleteTableRequest{}, &emptypb.Empty{} },
	tables + "ModifyColumnFamilies": func() (proto.Message, proto.Message) {
		return &admin.ModifyColumnFamiliesRequest{}, &admin.Table{}
	},
	tables + "DropRowRange": func() (proto.Message, proto.Message) { return &admin.DropRowRangeRequest{}, &emptypb.Empty{} },
}

type journal struct {
	one   sync.Mutex // one change at a time, so that the log has the order in which they were made
	file  *os.File
	ready chan struct{} // closed when the log was replayed
}

func (j *journal) append(method string, request proto.Message) {
	body, err := proto.Marshal(request)
	if err != nil {
		log.Fatal(err)
	}
	record := binary.BigEndian.AppendUint32(nil, uint32(len(method)))
	record = append(binary.BigEndian.AppendUint32(record, uint32(len(body))), method...)
	if _, err := j.file.Write(append(record, body...)); err != nil {
		log.Fatal(err)
	}
}

// begin says whether a call is one to write down, in which case it holds the lock.
func (j *journal) begin(ctx context.Context, method string) bool {
	if asked, _ := metadata.FromIncomingContext(ctx); len(asked.Get(replaying)) > 0 {
		return false
	}
	<-j.ready
	if changing[method] == nil {
		return false
	}
	j.one.Lock()
	return true
}

func (j *journal) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !j.begin(ctx, info.FullMethod) {
		return handler(ctx, request)
	}
	defer j.one.Unlock()
	answer, err := handler(ctx, request)
	j.append(info.FullMethod, request.(proto.Message))
	return answer, err
}

func (j *journal) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !j.begin(stream.Context(), info.FullMethod) {
		return handler(server, stream)
	}
	defer j.one.Unlock()
	return handler(server, &written{ServerStream: stream, journal: j, method: info.FullMethod})
}

// written is the stream of a bulk mutation, which is written down before its answer is sent.
type written struct {
	grpc.ServerStream
	journal *journal
	method  string
	request proto.Message
}

func (w *written) RecvMsg(message any) error {
	err := w.ServerStream.RecvMsg(message)
	w.request = message.(proto.Message)
	return err
}

func (w *written) SendMsg(message any) error {
	w.journal.append(w.method, w.request)
	return w.ServerStream.SendMsg(message)
}

// replay asks what the log holds again, and gives the length of its whole records.
func replay(file *os.File, connection *grpc.ClientConn) int64 {
	ctx := metadata.AppendToOutgoingContext(context.Background(), replaying, "1")
	reader, length := bufio.NewReader(file), int64(0)
	for {
		sizes := make([]byte, 8)
		if _, err := io.ReadFull(reader, sizes); err != nil {
			return length
		}
		name, size := binary.BigEndian.Uint32(sizes), binary.BigEndian.Uint32(sizes[4:])
		record := make([]byte, int(name)+int(size))
		if _, err := io.ReadFull(reader, record); err != nil { // cut off while it was written, hence never answered
			return length
		}
		length += int64(8 + len(record))
		method := string(record[:name])
		request, answer := changing[method]()
		if err := proto.Unmarshal(record[name:], request); err != nil {
			log.Fatal(err)
		}
		ask(ctx, connection, method, request, answer) // what was refused then is refused again
	}
}

func ask(ctx context.Context, connection *grpc.ClientConn, method string, request, answer proto.Message) {
	if method != rows+"MutateRows" {
		_ = connection.Invoke(ctx, method, request, answer)
		return
	}
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg(request), stream.CloseSend()); err != nil {
		log.Fatal(err)
	}
	for stream.RecvMsg(answer) == nil {
	}
}

func main() {
	address := flag.String("address", "127.0.0.1:9000", "host:port to listen on")
	path := flag.String("log", "bigtable.log", "file of the log")
	flag.Parse()
	file, err := os.OpenFile(*path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	j := &journal{file: file, ready: make(chan struct{})}
	server, err := bttest.NewServer(*address,
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(j.unary), grpc.StreamInterceptor(j.stream))
	if err != nil {
		log.Fatal(err)
	}
	connection, err := grpc.NewClient(server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(maxMessage), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		log.Fatal(err)
	}
	started := time.Now()
	length := replay(file, connection)
	connection.Close()
	if err := errors.Join(file.Truncate(length), seek(file, length)); err != nil {
		log.Fatal(err)
	}
	log.Printf("replayed %d bytes in %s", length, time.Since(started))
	close(j.ready)
	select {}
}

func seek(file *os.File, place int64) error {
	_, err := file.Seek(place, io.SeekStart)
	return err
}
