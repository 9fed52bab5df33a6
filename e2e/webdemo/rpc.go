package main

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// testService answers with what it got. Cookies, authorization and metadata whose names begin with "x-" come back, in the
// header as x-seen-NAME and in the trailer as x-trailer-NAME.
type testService struct {
	pb.UnimplementedTestServiceServer
}

func serveGRPC(l net.Listener) error {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	pb.RegisterTestServiceServer(s, testService{})
	return s.Serve(l)
}

func mirror(ctx context.Context) (header, trailer metadata.MD) {
	header, trailer = metadata.MD{}, metadata.MD{}
	in, _ := metadata.FromIncomingContext(ctx)
	for name, values := range in {
		if strings.HasPrefix(name, "x-") || name == "cookie" || name == "authorization" {
			header["x-seen-"+name] = values
			trailer["x-trailer-"+name] = values
		}
	}
	return header, trailer
}

func (testService) EmptyCall(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	header, trailer := mirror(ctx)
	_ = grpc.SetHeader(ctx, header)
	_ = grpc.SetTrailer(ctx, trailer)
	return &pb.Empty{}, nil
}

// UnaryCall sends the payload back, or fails with the status that the request asks for.
func (testService) UnaryCall(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	header, trailer := mirror(ctx)
	_ = grpc.SetHeader(ctx, header)
	_ = grpc.SetTrailer(ctx, trailer)
	if s := in.GetResponseStatus(); s.GetCode() != 0 {
		return nil, status.Error(codes.Code(s.GetCode()), s.GetMessage())
	}
	out := in.GetPayload()
	if n := in.GetResponseSize(); n > 0 && n <= 64<<20 {
		out = &pb.Payload{Body: make([]byte, n)}
	}
	return &pb.SimpleResponse{Payload: out}, nil
}

// FullDuplexCall sends every message's payload back as soon as it arrives.
func (testService) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	header, trailer := mirror(stream.Context())
	_ = stream.SendHeader(header)
	stream.SetTrailer(trailer)
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.StreamingOutputCallResponse{Payload: in.GetPayload()}); err != nil {
			return err
		}
	}
}
